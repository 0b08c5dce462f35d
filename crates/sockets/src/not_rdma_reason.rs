//! The reasons why a connection stays on TCP, or was demoted.

/// Why a connection does not use RDMA, as stored in its page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum NotRdmaReason {
    /// No reason: the connection is on RDMA, or may still change.
    None = 0,
    /// The peer does not use this library.
    PeerWithoutLibrary = 1,
    /// Bytes bypassed this library, by another process or by the program's own system calls.
    BypassedBytes = 2,
    /// A queue pair or a ring could not be created.
    NoResources = 3,
    /// A direction was shut down, or the socket closed.
    Shutdown = 4,
    /// Another process also uses the socket: it was forked, or received the socket by a message or by `exec`.
    OtherProcess = 5,
    /// The program made a call that only the kernel's TCP supports.
    Unsupported = 6,
    /// A WRITE to the peer failed.
    WriteFailed = 7,
    /// The other end demoted its direction.
    DemotedByOtherEnd = 8,
    /// The process changed its effective user, and the new one has no access to the fabric of the old one.
    OtherUser = 9,
}

impl NotRdmaReason {
    /// The numbers of all reasons.
    pub(crate) const NUMBERS: std::ops::Range<u64> = 0..Self::ALL.len() as u64;

    const ALL: [(Self, &'static str); 10] = [
        (Self::None, "-"),
        (
            Self::PeerWithoutLibrary,
            "the peer does not run under verbatim sockets",
        ),
        (Self::BypassedBytes, "bytes went past the library"),
        (Self::NoResources, "no queue pair or no memory"),
        (Self::Shutdown, "shut down or closed"),
        (Self::OtherProcess, "another process uses the socket too"),
        (Self::Unsupported, "a call that only TCP can do"),
        (Self::WriteFailed, "a WRITE to the peer failed"),
        (Self::DemotedByOtherEnd, "the other end went back to TCP"),
        (Self::OtherUser, "a process changed its user"),
    ];

    /// Returns the text for a number in a page.
    #[must_use]
    pub(crate) fn describe(number: u64) -> &'static str {
        let found = Self::ALL
            .iter()
            .find(|(reason, _)| *reason as u64 == number);
        found.map_or("unknown", |(_, text)| text)
    }
}
