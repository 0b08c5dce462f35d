//! Payload of work requests, and the buffers into which they receive.

use verbs_abi as abi;

use crate::mr_slice::MrSlice;

/// No payload: the message is only a header, with or without an immediate.
#[derive(Debug, Clone, Copy)]
pub struct HeaderOnly;

/// Payload inside the work request. The bytes are copied into the list at once, so they may change
/// afterwards.
#[derive(Debug, Clone, Copy)]
pub struct Inline<'a>(pub &'a [u8]);

/// The payload of a SEND or RDMA WRITE: [`HeaderOnly`], [`Inline`] bytes, an [`MrSlice`] or several of them.
pub trait Payload: sealed::Payload {}

/// Ranges of memory regions, into which a READ or RECV writes.
pub trait ScatterDestination: Payload {}

pub(crate) mod sealed {
    use verbs_abi as abi;

    /// The space for the SGEs and inline bytes of one WR.
    pub struct WrSpace<'l> {
        pub(crate) sges: &'l mut [abi::ibv_sge],
        pub(crate) inline: &'l mut [u8],
    }

    pub trait Payload {
        /// Fills the space; returns the number of SGEs and the send flags.
        fn fill_wr_space(self, room: WrSpace<'_>) -> (i32, u32);
    }
}
use sealed::WrSpace;

impl Payload for HeaderOnly {}
impl ScatterDestination for HeaderOnly {}
impl sealed::Payload for HeaderOnly {
    #[inline]
    fn fill_wr_space(self, _: WrSpace<'_>) -> (i32, u32) {
        (0, 0)
    }
}

impl Payload for MrSlice {}
impl ScatterDestination for MrSlice {}
impl sealed::Payload for MrSlice {
    #[inline]
    fn fill_wr_space(self, room: WrSpace<'_>) -> (i32, u32) {
        room.sges[0] = abi::ibv_sge {
            addr: self.addr,
            length: self.len,
            lkey: self.lkey,
        };
        (1, 0)
    }
}

impl Payload for &[MrSlice] {}
impl ScatterDestination for &[MrSlice] {}
impl sealed::Payload for &[MrSlice] {
    #[inline]
    fn fill_wr_space(self, room: WrSpace<'_>) -> (i32, u32) {
        assert!(
            self.len() <= room.sges.len(),
            "{} SGEs in a list made for {}",
            self.len(),
            room.sges.len()
        );
        for (sge, s) in room.sges.iter_mut().zip(self) {
            *sge = abi::ibv_sge {
                addr: s.addr,
                length: s.len,
                lkey: s.lkey,
            };
        }
        (i32::try_from(self.len()).unwrap_or(i32::MAX), 0)
    }
}

impl<const N: usize> Payload for [MrSlice; N] {}
impl<const N: usize> ScatterDestination for [MrSlice; N] {}
impl<const N: usize> sealed::Payload for [MrSlice; N] {
    #[inline]
    fn fill_wr_space(self, room: WrSpace<'_>) -> (i32, u32) {
        sealed::Payload::fill_wr_space(&self[..], room)
    }
}

impl Payload for Inline<'_> {}
impl sealed::Payload for Inline<'_> {
    #[inline]
    fn fill_wr_space(self, room: WrSpace<'_>) -> (i32, u32) {
        let (bytes, area) = (self.0, room.inline);
        assert!(
            bytes.len() <= area.len(),
            "{} inline bytes in a list made for {}",
            bytes.len(),
            area.len()
        );
        area[..bytes.len()].copy_from_slice(bytes);
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        room.sges[0] = abi::ibv_sge {
            addr: area.as_ptr().expose_provenance() as u64,
            length,
            lkey: 0,
        };
        (1, abi::IBV_SEND_INLINE)
    }
}
