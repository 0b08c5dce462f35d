//! Commands on values.

use std::time::Duration;

use crate::call::{CommandCall, CommandError, CommandResult, check_reply_length};
use crate::key_commands::expiry_time_ms;
use crate::number::parse_canonical_integer;
use kv::store::{Refusal, SetCondition, SetOptions};

pub(crate) fn get(call: &mut CommandCall<'_>) -> CommandResult {
    let key = call.args.get_or_empty(1);
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    match partition.get(hash, key) {
        Some(entry) => call.replies.write_bulk_string(entry.value),
        None => call.replies.write_null(),
    }
    Ok(())
}

pub(crate) fn mget(call: &mut CommandCall<'_>) -> CommandResult {
    call.replies.begin_array(call.args.count() - 1);
    let begun = call.replies.output_length();
    for key in call.args.strings_from(1) {
        let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
        match partition.get(hash, key) {
            Some(entry) => call.replies.write_bulk_string(entry.value),
            None => call.replies.write_null(),
        }
        check_reply_length(begun, &call.replies)?;
    }
    Ok(())
}

pub(crate) fn strlen(call: &mut CommandCall<'_>) -> CommandResult {
    let key = call.args.get_or_empty(1);
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    let length = partition.get(hash, key).map_or(0, |e| e.value.len());
    call.replies
        .write_integer(i64::try_from(length).unwrap_or(i64::MAX));
    Ok(())
}

/// The expiry of a value that is set.
#[derive(Clone, Copy, PartialEq)]
enum Expiry {
    Never,
    Keep,
    AtMs(u64),
}

/// The options of `SET`.
struct SetCommandOptions {
    condition: SetCondition,
    expiry: Expiry,
    returns_old_value: bool,
}

impl SetCommandOptions {
    fn parse_args(call: &CommandCall<'_>, now_ms: u64) -> Result<Self, CommandError> {
        let mut options = Self {
            condition: SetCondition::Always,
            expiry: Expiry::Never,
            returns_old_value: false,
        };
        let mut words = call.args.strings_from(3);
        while let Some(word) = words.next() {
            let word = word.to_ascii_lowercase();
            let is_unset = options.expiry == Expiry::Never;
            match word.as_slice() {
                b"nx" if options.condition != SetCondition::Present => {
                    options.condition = SetCondition::Absent;
                }
                b"xx" if options.condition != SetCondition::Absent => {
                    options.condition = SetCondition::Present;
                }
                b"get" => options.returns_old_value = true,
                b"keepttl" if is_unset => options.expiry = Expiry::Keep,
                b"ex" | b"px" | b"exat" | b"pxat" if is_unset => {
                    let time = words.next().ok_or(CommandError::Syntax)?;
                    let time = parse_canonical_integer(time).ok_or(CommandError::NotInteger)?;
                    let unit = Duration::from_millis(if word[0] == b'e' { 1000 } else { 1 });
                    let from = if word.ends_with(b"at") { 0 } else { now_ms };
                    let at = expiry_time_ms(from, time, unit).filter(|_| time > 0);
                    options.expiry =
                        Expiry::AtMs(at.ok_or(CommandError::InvalidExpireTime("set"))?);
                }
                _ => return Err(CommandError::Syntax),
            }
        }
        Ok(options)
    }
}

pub(crate) fn set(call: &mut CommandCall<'_>) -> CommandResult {
    let (key, value) = (call.args.get_or_empty(1), call.args.get_or_empty(2));
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    if call.args.count() == 3 {
        partition.set(hash, key, value, SetOptions::default())?;
        call.replies.write_simple_string("OK");
        return Ok(());
    }
    let options = SetCommandOptions::parse_args(call, partition.now_ms())?;
    let old = partition.get(hash, key);
    let expires_ms = match options.expiry {
        Expiry::Never => 0,
        Expiry::Keep => old.map_or(0, |e| e.expiry_time_ms),
        Expiry::AtMs(at) => at,
    };
    if options.returns_old_value {
        match old {
            Some(entry) => call.replies.write_bulk_string(entry.value),
            None => call.replies.write_null(),
        }
    }
    let how = SetOptions {
        condition: options.condition,
        expiry_time_ms: expires_ms,
    };
    match partition.set(hash, key, value, how) {
        Ok(_) if !options.returns_old_value => call.replies.write_simple_string("OK"),
        Err(Refusal::ConditionNotMetAtVersion(_)) if !options.returns_old_value => {
            call.replies.write_null()
        }
        Ok(_) | Err(Refusal::ConditionNotMetAtVersion(_)) => {}
        Err(other) => return Err(other.into()),
    }
    Ok(())
}

pub(crate) fn mset(call: &mut CommandCall<'_>) -> CommandResult {
    if call.args.count().is_multiple_of(2) {
        return Err(CommandError::WrongArgumentCount("mset".to_owned()));
    }
    let mut strings = call.args.strings_from(1);
    while let (Some(key), Some(value)) = (strings.next(), strings.next()) {
        let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
        partition.set(hash, key, value, SetOptions::default())?;
    }
    call.replies.write_simple_string("OK");
    Ok(())
}

pub(crate) fn incr(call: &mut CommandCall<'_>) -> CommandResult {
    add_to_stored_number(call, 1)
}

pub(crate) fn decr(call: &mut CommandCall<'_>) -> CommandResult {
    add_to_stored_number(call, -1)
}

pub(crate) fn incrby(call: &mut CommandCall<'_>) -> CommandResult {
    let by = parse_canonical_integer(call.args.get_or_empty(2)).ok_or(CommandError::NotInteger)?;
    add_to_stored_number(call, by)
}

pub(crate) fn decrby(call: &mut CommandCall<'_>) -> CommandResult {
    let by = parse_canonical_integer(call.args.get_or_empty(2)).ok_or(CommandError::NotInteger)?;
    let by = by.checked_neg().ok_or(CommandError::DecrementOverflow)?;
    add_to_stored_number(call, by)
}

/// Adds to the number of a key. An absent key counts as 0, and the expiry time stays.
fn add_to_stored_number(call: &mut CommandCall<'_>, by: i64) -> CommandResult {
    let key = call.args.get_or_empty(1);
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    let (before, expires_ms) = match partition.get(hash, key) {
        None => (0, 0),
        Some(entry) => {
            let before = parse_canonical_integer(entry.value).ok_or(CommandError::NotInteger)?;
            (before, entry.expiry_time_ms)
        }
    };
    let sum = before.checked_add(by).ok_or(CommandError::Overflow)?;
    let how = SetOptions {
        expiry_time_ms: expires_ms,
        ..SetOptions::default()
    };
    let mut text = itoa::Buffer::new();
    partition.set(hash, key, text.format(sum).as_bytes(), how)?;
    call.replies.write_integer(sum);
    Ok(())
}
