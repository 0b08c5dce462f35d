//! The Redis protocol before a store, for clients without RDMA: `redis-cli` and `redis-benchmark` look at what RDMA
//! clients use.
//!
//! Layers: [`Decoder`] and [`Replies`] are the protocol, pure; [`Session`] carries out commands on a store; [`Listener`]
//! and [`Connection`] are how bytes come and go; [`Front`] serves many connections in one thread.
//!
//! Each command is carried out under the lock of its key's partition, and is atomic as in Redis. Commands of several
//! keys (`DEL`, `EXISTS`, `MGET`, `MSET`) are atomic for each key, not for all together. Values have at most 64 KiB.
//! There is no password: whoever can connect can change everything.

mod admin;
mod command;
mod connection;
mod frame;
mod front;
mod keys;
mod reply;
mod strings;

pub use command::{Session, Shared};
pub use connection::{Address, Connection, Listener};
pub use frame::{
    Args, Decoder, MAX_ARGUMENTS, MAX_BULK_BYTES, MAX_COMMAND_BYTES, MAX_INLINE_BYTES,
    ProtocolError,
};
pub use front::{Front, FrontStats};
pub use reply::{Protocol, Replies};

/// The names of all commands.
#[cfg(test)]
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    command::COMMANDS.iter().map(|c| c.name)
}

/// A number as Redis writes it, and no other spelling (`string2ll`): no plus, no leading zeros, no spaces.
fn integer(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let canonical = match digits {
        [b'0'] => digits.len() == text.len(),
        [b'1'..=b'9', ..] => true,
        _ => false,
    };
    let text = std::str::from_utf8(text).ok()?;
    canonical.then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::integer;

    #[test]
    fn a_number_has_one_spelling() {
        for n in [0, 1, -1, 10, i64::MAX, i64::MIN] {
            assert_eq!(integer(n.to_string().as_bytes()), Some(n));
        }
        let wrong = ["", "-", "-0", "+1", "01", " 1", "1 ", "1a", "1.0"];
        for text in wrong.iter().copied().chain(["9223372036854775808"]) {
            assert_eq!(integer(text.as_bytes()), None, "{text:?}");
        }
    }
}
