//! Why a connection stays on TCP, or went back to it.

/// A reason, as a page of a connection holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Reason {
    /// It does not.
    None = 0,
    /// The peer does not take part.
    PeerSilent = 1,
    /// Bytes went by without this library: by another process, or by system calls of the program's own.
    Uncounted = 2,
    /// A queue pair or a ring could not be made.
    NoResources = 3,
    /// A direction was shut down, or the socket closed.
    Shutdown = 4,
    /// Another process uses the socket too: it was forked, or got it by a message or by `exec`.
    OtherProcess = 5,
    /// The program called what only the kernel's TCP can do.
    Unsupported = 6,
    /// A WRITE to the peer failed.
    WriteFailed = 7,
}

impl Reason {
    const ALL: [(Self, &'static str); 8] = [
        (Self::None, "-"),
        (
            Self::PeerSilent,
            "the peer does not run under verbatim sockets",
        ),
        (Self::Uncounted, "bytes went past the library"),
        (Self::NoResources, "no queue pair or no memory"),
        (Self::Shutdown, "shut down or closed"),
        (Self::OtherProcess, "another process uses the socket too"),
        (Self::Unsupported, "a call that only TCP can do"),
        (Self::WriteFailed, "a WRITE to the peer failed"),
    ];

    /// In words, of the number in a page.
    #[must_use]
    pub(crate) fn text(number: u64) -> &'static str {
        let found = Self::ALL
            .iter()
            .find(|(reason, _)| *reason as u64 == number);
        found.map_or("unknown", |(_, text)| text)
    }
}
