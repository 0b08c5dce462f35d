//! Commands on keys: existence, removal and expiry.

use std::time::Duration;

use crate::call::{CommandCall, CommandError, CommandResult, escape_preview};
use crate::number::parse_canonical_integer;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

/// Returns `from_ms` plus `time` units in milliseconds, at least 1 because 0 means never. Returns `None` if the result
/// is out of range.
pub(crate) fn expiry_time_ms(from_ms: u64, time: i64, unit: Duration) -> Option<u64> {
    let unit = i64::try_from(unit.as_millis()).ok()?;
    let at = i64::try_from(from_ms)
        .ok()?
        .checked_add(time.checked_mul(unit)?)?;
    u64::try_from(at.max(1)).ok()
}

/// Counts the keys for which `holds` returns true, and replies with the count.
fn reply_matching_key_count(
    call: &mut CommandCall<'_>,
    mut holds: impl FnMut(&CommandCall<'_>, &[u8]) -> bool,
) -> CommandResult {
    let n = call
        .args
        .strings_from(1)
        .map(|key| i64::from(holds(call, key)))
        .sum();
    call.replies.write_integer(n);
    Ok(())
}

pub(crate) fn del(call: &mut CommandCall<'_>) -> CommandResult {
    reply_matching_key_count(call, |call, key| {
        let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
        matches!(partition.delete(hash, key, None), Ok(version) if version > 0)
    })
}

pub(crate) fn exists(call: &mut CommandCall<'_>) -> CommandResult {
    reply_matching_key_count(call, |call, key| {
        let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
        partition.get(hash, key).is_some()
    })
}

/// Returns the milliseconds until a key expires; -1 if it never does, -2 if the key is absent.
fn time_to_live_ms(call: &CommandCall<'_>) -> i64 {
    let key = call.args.get_or_empty(1);
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    let now = partition.now_ms();
    match partition.get(hash, key) {
        None => -2,
        Some(entry) if entry.expiry_time_ms == 0 => -1,
        Some(entry) => i64::try_from(entry.expiry_time_ms.saturating_sub(now)).unwrap_or(i64::MAX),
    }
}

pub(crate) fn ttl(call: &mut CommandCall<'_>) -> CommandResult {
    let left = time_to_live_ms(call);
    // Rounds to the nearest second, as Redis does.
    let seconds = if left < 0 {
        left
    } else {
        left.saturating_add(500) / 1000
    };
    call.replies.write_integer(seconds);
    Ok(())
}

pub(crate) fn pttl(call: &mut CommandCall<'_>) -> CommandResult {
    let left = time_to_live_ms(call);
    call.replies.write_integer(left);
    Ok(())
}

pub(crate) fn expire(call: &mut CommandCall<'_>) -> CommandResult {
    set_expiry_and_reply(call, "expire", SECOND)
}

pub(crate) fn pexpire(call: &mut CommandCall<'_>) -> CommandResult {
    set_expiry_and_reply(call, "pexpire", MILLISECOND)
}

fn set_expiry_and_reply(
    call: &mut CommandCall<'_>,
    name: &'static str,
    unit: Duration,
) -> CommandResult {
    let key = call.args.get_or_empty(1);
    let (mut absent, mut present, mut later, mut sooner) = (false, false, false, false);
    for word in call.args.strings_from(3) {
        match word.to_ascii_lowercase().as_slice() {
            b"nx" => absent = true,
            b"xx" => present = true,
            b"gt" => later = true,
            b"lt" => sooner = true,
            _ => return Err(CommandError::UnsupportedOption(escape_preview(word))),
        }
    }
    if absent && (present || later || sooner) {
        return Err(CommandError::IncompatibleOptions("NX and XX, GT or LT"));
    }
    if later && sooner {
        return Err(CommandError::IncompatibleOptions("GT and LT"));
    }
    let time =
        parse_canonical_integer(call.args.get_or_empty(2)).ok_or(CommandError::NotInteger)?;
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    let now = partition.now_ms();
    let at = expiry_time_ms(now, time, unit).ok_or(CommandError::InvalidExpireTime(name))?;
    let Some(before) = partition.get(hash, key).map(|e| e.expiry_time_ms) else {
        call.replies.write_integer(0);
        return Ok(());
    };
    // An item that never expires counts as expiring later than any other.
    let end = if before == 0 { u64::MAX } else { before };
    let refused = absent && before != 0
        || present && before == 0
        || later && at <= end
        || sooner && at >= end;
    if !refused {
        if at <= now {
            // Without a version, the removal cannot be refused.
            let _ = partition.delete(hash, key, None);
        } else {
            partition.set_expiry(hash, key, at)?;
        }
    }
    call.replies.write_integer(i64::from(!refused));
    Ok(())
}

pub(crate) fn persist(call: &mut CommandCall<'_>) -> CommandResult {
    let key = call.args.get_or_empty(1);
    let (hash, mut partition) = call.shared.store.hash_and_lock_partition(key);
    let expires = partition
        .get(hash, key)
        .is_some_and(|e| e.expiry_time_ms != 0);
    if expires {
        partition.set_expiry(hash, key, 0)?;
    }
    call.replies.write_integer(i64::from(expires));
    Ok(())
}
