//! Opcodes of the base transport header (IBTA vol. 1, table 38; annexes A14, A19 and A17).

/// Upper three bits of an opcode: the transport service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Congestion notification packet (annex A17).
    Cnp,
}

/// What a packet asks for or answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Part of a SEND.
    Send,
    /// Part of an RDMA WRITE.
    Write,
    /// An RDMA READ request.
    ReadRequest,
    /// Part of the response to a READ, a FLUSH or an ATOMIC WRITE.
    ReadResponse,
    /// A positive or negative acknowledgement.
    Acknowledge,
    /// The response to a compare-and-swap or fetch-and-add.
    AtomicAcknowledge,
    /// A compare-and-swap request.
    CompareSwap,
    /// A fetch-and-add request.
    FetchAdd,
    /// A FLUSH request (annex A19).
    Flush,
    /// An ATOMIC WRITE request (annex A19).
    AtomicWrite,
    /// A congestion notification.
    Cnp,
}

impl Operation {
    /// Whether the packet goes to a requester: it answers a request, or notifies of congestion.
    #[must_use]
    pub const fn is_response(self) -> bool {
        matches!(
            self,
            Self::ReadResponse | Self::Acknowledge | Self::AtomicAcknowledge | Self::Cnp
        )
    }
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
    /// The one packet of a message.
    Only,
}

impl Position {
    /// Whether the message begins here.
    #[must_use]
    pub const fn is_first(self) -> bool {
        matches!(self, Self::First | Self::Only)
    }

    /// Whether the message ends here.
    #[must_use]
    pub const fn is_last(self) -> bool {
        matches!(self, Self::Last | Self::Only)
    }

    /// The position of a packet that is first, last, both or neither.
    #[must_use]
    pub const fn of(is_first: bool, is_last: bool) -> Self {
        match (is_first, is_last) {
            (true, true) => Self::Only,
            (true, false) => Self::First,
            (false, true) => Self::Last,
            (false, false) => Self::Middle,
        }
    }
}

/// What the last packet of a SEND or WRITE brings beside its payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tail {
    /// Nothing.
    #[default]
    None,
    /// Four bytes of immediate data, as they lie in `ibv_send_wr::imm_data`.
    Imm([u8; 4]),
    /// The R_Key that the responder invalidates.
    Invalidate(u32),
}
