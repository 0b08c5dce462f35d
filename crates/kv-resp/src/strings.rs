//! Commands on values.

use std::time::Duration;

use crate::call::{Call, CommandError, CommandResult, check_length};
use crate::keys::deadline;
use crate::number::integer;
use kv::store::{Condition, Refusal, Set};

pub(crate) fn get(call: &mut Call<'_>) -> CommandResult {
    let key = call.args.at(1);
    let (hash, mut partition) = call.shared.store.lock(key);
    match partition.get(hash, key) {
        Some(entry) => call.replies.bulk(entry.value),
        None => call.replies.null(),
    }
    Ok(())
}

pub(crate) fn mget(call: &mut Call<'_>) -> CommandResult {
    call.replies.array(call.args.count() - 1);
    let begun = call.replies.bytes();
    for key in call.args.from(1) {
        let (hash, mut partition) = call.shared.store.lock(key);
        match partition.get(hash, key) {
            Some(entry) => call.replies.bulk(entry.value),
            None => call.replies.null(),
        }
        check_length(begun, &call.replies)?;
    }
    Ok(())
}

pub(crate) fn strlen(call: &mut Call<'_>) -> CommandResult {
    let key = call.args.at(1);
    let (hash, mut partition) = call.shared.store.lock(key);
    let length = partition.get(hash, key).map_or(0, |e| e.value.len());
    call.replies
        .integer(i64::try_from(length).unwrap_or(i64::MAX));
    Ok(())
}

/// The expiry of a value that is set.
#[derive(Clone, Copy, PartialEq)]
enum Expiry {
    Never,
    Keep,
    At(u64),
}

/// The options of `SET`.
struct Options {
    condition: Condition,
    expiry: Expiry,
    get: bool,
}

impl Options {
    fn read(call: &Call<'_>, now_ms: u64) -> Result<Self, CommandError> {
        let mut options = Self {
            condition: Condition::Always,
            expiry: Expiry::Never,
            get: false,
        };
        let mut words = call.args.from(3);
        while let Some(word) = words.next() {
            let word = word.to_ascii_lowercase();
            let is_unset = options.expiry == Expiry::Never;
            match word.as_slice() {
                b"nx" if options.condition != Condition::Present => {
                    options.condition = Condition::Absent;
                }
                b"xx" if options.condition != Condition::Absent => {
                    options.condition = Condition::Present;
                }
                b"get" => options.get = true,
                b"keepttl" if is_unset => options.expiry = Expiry::Keep,
                b"ex" | b"px" | b"exat" | b"pxat" if is_unset => {
                    let time = words.next().ok_or(CommandError::Syntax)?;
                    let time = integer(time).ok_or(CommandError::NotInteger)?;
                    let unit = Duration::from_millis(if word[0] == b'e' { 1000 } else { 1 });
                    let from = if word.ends_with(b"at") { 0 } else { now_ms };
                    let at = deadline(from, time, unit).filter(|_| time > 0);
                    options.expiry = Expiry::At(at.ok_or(CommandError::Expire("set"))?);
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }
}

pub(crate) fn set(call: &mut Call<'_>) -> CommandResult {
    let (key, value) = (call.args.at(1), call.args.at(2));
    let (hash, mut partition) = call.shared.store.lock(key);
    if call.args.count() == 3 {
        partition.set(hash, key, value, Set::default())?;
        call.replies.simple("OK");
        return Ok(());
    }
    let options = Options::read(call, partition.now_ms())?;
    let old = partition.get(hash, key);
    let expires_ms = match options.expiry {
        Expiry::Never => 0,
        Expiry::Keep => old.map_or(0, |e| e.expires_ms),
        Expiry::At(at) => at,
    };
    if options.get {
        match old {
            Some(entry) => call.replies.bulk(entry.value),
            None => call.replies.null(),
        }
    }
    let how = Set {
        condition: options.condition,
        expires_ms,
    };
    match partition.set(hash, key, value, how) {
        Ok(_) if !options.get => call.replies.simple("OK"),
        Err(Refusal::Condition(_)) if !options.get => call.replies.null(),
        Ok(_) | Err(Refusal::Condition(_)) => {}
        Err(other) => return Err(other.into()),
    }
    Ok(())
}

pub(crate) fn mset(call: &mut Call<'_>) -> CommandResult {
    if call.args.count().is_multiple_of(2) {
        return Err(CommandError::Count("mset".to_owned()));
    }
    let mut strings = call.args.from(1);
    while let (Some(key), Some(value)) = (strings.next(), strings.next()) {
        let (hash, mut partition) = call.shared.store.lock(key);
        partition.set(hash, key, value, Set::default())?;
    }
    call.replies.simple("OK");
    Ok(())
}

pub(crate) fn incr(call: &mut Call<'_>) -> CommandResult {
    add(call, 1)
}

pub(crate) fn decr(call: &mut Call<'_>) -> CommandResult {
    add(call, -1)
}

pub(crate) fn incrby(call: &mut Call<'_>) -> CommandResult {
    let by = integer(call.args.at(2)).ok_or(CommandError::NotInteger)?;
    add(call, by)
}

pub(crate) fn decrby(call: &mut Call<'_>) -> CommandResult {
    let by = integer(call.args.at(2)).ok_or(CommandError::NotInteger)?;
    let by = by.checked_neg().ok_or(CommandError::Negation)?;
    add(call, by)
}

/// Adds to the number of a key. An absent key counts as 0, and the expiry time stays.
fn add(call: &mut Call<'_>, by: i64) -> CommandResult {
    let key = call.args.at(1);
    let (hash, mut partition) = call.shared.store.lock(key);
    let (before, expires_ms) = match partition.get(hash, key) {
        None => (0, 0),
        Some(entry) => {
            let before = integer(entry.value).ok_or(CommandError::NotInteger)?;
            (before, entry.expires_ms)
        }
    };
    let sum = before.checked_add(by).ok_or(CommandError::Overflow)?;
    let how = Set {
        expires_ms,
        ..Set::default()
    };
    let mut text = itoa::Buffer::new();
    partition.set(hash, key, text.format(sum).as_bytes(), how)?;
    call.replies.integer(sum);
    Ok(())
}
