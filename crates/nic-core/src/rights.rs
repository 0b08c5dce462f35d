//! The access check: decides whether a work request may access bytes of memory. No other code makes this decision.
//!
//! The same four conditions apply to local buffers (SGEs with an L_Key, placement of SENDs) and to remote memory (an
//! R_Key: WRITE, READ, atomics, FLUSH). They are the conditions of IBTA vol. 1, 10.6.3 and 10.7.2:
//!
//! 1. the queue pair that executes a remote request allows the access ([`AccessDenied::QueuePairAccess`]),
//! 2. the memory region or window allows it ([`AccessDenied::RegionAccess`]),
//! 3. the region is in the queue pair's protection domain, or the window admits the queue pair
//!    ([`AccessDenied::WrongPdOrQp`]),
//! 4. the bytes are inside the region or window ([`AccessDenied::OutOfRange`]).
//!
//! [`authorize`] checks all four conditions. A run of WRITEs to one region checks the first three conditions once, with
//! [`authorize_region`], and the fourth for each WRITE, with [`RegionGrant::permit_range`]. Only these functions make a
//! [`PermittedRange`].
//!
//! ```
//! use nic_core::rights::{Access, AccessDenied, OwningPdOrQp, QpMemoryRights, RegionRights, authorize, flag};
//!
//! let region = RegionRights { start: 4096, len: 64, access: flag::REMOTE_READ, owner: OwningPdOrQp::region_in_pd(7) };
//! let qp = QpMemoryRights { requester_access: flag::REMOTE_READ | flag::REMOTE_WRITE, pd_number: 7, qpn: 11 };
//! assert_eq!(authorize(&region, (4100, 60), Access::RemoteRead, &qp).unwrap().offset(), 4);
//! assert_eq!(authorize(&region, (4100, 61), Access::RemoteRead, &qp), Err(AccessDenied::OutOfRange));
//! assert_eq!(authorize(&region, (4100, 60), Access::RemoteWrite, &qp), Err(AccessDenied::RegionAccess));
//! ```

/// Access rights of regions, windows and queue pairs: the bits of `enum ibv_access_flags`.
pub mod flag {
    /// `IBV_ACCESS_LOCAL_WRITE`.
    pub const LOCAL_WRITE: u32 = 1 << 0;
    /// `IBV_ACCESS_REMOTE_WRITE`.
    pub const REMOTE_WRITE: u32 = 1 << 1;
    /// `IBV_ACCESS_REMOTE_READ`.
    pub const REMOTE_READ: u32 = 1 << 2;
    /// `IBV_ACCESS_REMOTE_ATOMIC`.
    pub const REMOTE_ATOMIC: u32 = 1 << 3;
    /// `IBV_ACCESS_FLUSH_GLOBAL`.
    pub const FLUSH_GLOBAL: u32 = 1 << 8;
    /// `IBV_ACCESS_FLUSH_PERSISTENT`.
    pub const FLUSH_PERSISTENT: u32 = 1 << 9;
}

/// The kind of access of a work request to memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads a local buffer, such as the payload of SEND or WRITE. Every region allows it.
    LocalRead,
    /// Writes a local buffer, such as the placement of a message, or the result of READ and atomics.
    LocalWrite,
    /// RDMA WRITE and atomic write.
    RemoteWrite,
    /// RDMA READ.
    RemoteRead,
    /// Compare-and-swap and fetch-and-add.
    RemoteAtomic,
    /// FLUSH with global visibility.
    FlushGlobal,
    /// FLUSH with persistence.
    FlushPersistent,
}

impl Access {
    /// Returns the bit of [`flag`] that allows the access; 0 if no bit is needed.
    #[inline(always)]
    #[must_use]
    pub const fn flag(self) -> u32 {
        match self {
            Self::LocalRead => 0,
            Self::LocalWrite => flag::LOCAL_WRITE,
            Self::RemoteWrite => flag::REMOTE_WRITE,
            Self::RemoteRead => flag::REMOTE_READ,
            Self::RemoteAtomic => flag::REMOTE_ATOMIC,
            Self::FlushGlobal => flag::FLUSH_GLOBAL,
            Self::FlushPersistent => flag::FLUSH_PERSISTENT,
        }
    }

    /// Returns true if the access uses an L_Key.
    #[inline(always)]
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }

    /// Returns true if the access changes the memory.
    #[inline(always)]
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(
            self,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic
        )
    }
}

/// The owner of a memory region or window, encoded as one word of the key table.
///
/// The word of a normal region is the number of its protection domain. Windows, and regions of the whole address space,
/// have additional upper bits. One comparison therefore admits the usual case; only other cases need further checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwningPdOrQp(u32);

impl OwningPdOrQp {
    /// Limit of protection domain numbers: a number is at least 1 and less than `PD_NUMBER_LIMIT`.
    pub const PD_NUMBER_LIMIT: u32 = 1 << 30;

    /// Protection domain of a queue pair without one (an XRC target). No region and no window has this number.
    pub const NO_DOMAIN: u32 = u32::MAX;

    const WHOLE_SPACE_BIT: u32 = 1 << 30;
    const WINDOW_TYPE_1_BITS: u32 = 1 << 31;
    const WINDOW_TYPE_2_BITS: u32 = 3 << 30;

    /// Makes the owner of a region in protection domain `number`.
    #[inline]
    #[must_use]
    pub const fn region_in_pd(number: u32) -> Self {
        Self(number)
    }

    /// Makes the owner of a region of the whole address space (implicit on-demand paging) in protection domain
    /// `number`.
    #[inline]
    #[must_use]
    pub const fn implicit_odp_region_in_pd(number: u32) -> Self {
        Self(Self::WHOLE_SPACE_BIT | number)
    }

    /// Makes the owner of a type 1 window in protection domain `number`, for all queue pairs of the domain.
    #[inline]
    #[must_use]
    pub const fn window_type_1(number: u32) -> Self {
        Self(Self::WINDOW_TYPE_1_BITS | number)
    }

    /// Makes the owner of a type 2 window that queue pair `qpn` has bound, for that queue pair only (type 2B of IBTA
    /// vol. 1, 10.6.7.2.3).
    #[inline]
    #[must_use]
    pub const fn window_type_2(qpn: u32) -> Self {
        Self(Self::WINDOW_TYPE_2_BITS | qpn)
    }

    /// Decodes the word of the key table; every word is valid.
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// Encodes the owner as the word of the key table.
    #[inline]
    #[must_use]
    pub const fn to_word(self) -> u32 {
        self.0
    }

    /// Returns the number of the protection domain; `None` for a type 2 window, which belongs to a queue pair.
    #[inline]
    #[must_use]
    pub const fn pd_number(self) -> Option<u32> {
        if self.0 & Self::WINDOW_TYPE_2_BITS == Self::WINDOW_TYPE_2_BITS {
            None
        } else {
            Some(self.0 & (Self::PD_NUMBER_LIMIT - 1))
        }
    }

    /// Returns true for a window, false for a region.
    #[inline]
    #[must_use]
    pub const fn is_window(self) -> bool {
        self.0 & Self::WINDOW_TYPE_1_BITS != 0
    }

    /// Returns this owner with another protection domain number, that of the importing process.
    #[inline]
    #[must_use]
    pub const fn with_pd_number(self, number: u32) -> Self {
        Self(self.0 & !(Self::PD_NUMBER_LIMIT - 1) | number)
    }

    /// Returns true if the owner admits local buffers of protection domain `domain`. A window's key is never an L_Key.
    #[inline(always)]
    const fn admits_local(self, domain: u32) -> bool {
        self.0 == domain || self.0 == Self::WHOLE_SPACE_BIT | domain
    }

    /// Returns true if the owner admits remote requests to queue pair `qp`.
    #[inline(always)]
    const fn admits_remote(self, qp: &QpMemoryRights) -> bool {
        self.admits_local(qp.pd_number)
            || self.0 == Self::WINDOW_TYPE_1_BITS | qp.pd_number
            || self.0 == Self::WINDOW_TYPE_2_BITS | qp.qpn
    }

    /// Returns true for a region of the whole address space.
    #[inline(always)]
    const fn is_whole_address_space(self) -> bool {
        self.0 & Self::WINDOW_TYPE_2_BITS == Self::WHOLE_SPACE_BIT
    }
}

/// The fields of a registered memory region or a bound window that determine rights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionRights {
    /// Address by which work requests name the first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Access rights: bits of [`flag`]; other bits are ignored.
    pub access: u32,
    /// Owner of the region or window.
    pub owner: OwningPdOrQp,
}

/// The fields of a queue pair that determine its rights to memory on its own side.
///
/// For a remote access, it is the responder's queue pair. For a local access, it is the queue pair or receive queue
/// whose work request has the SGEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpMemoryRights {
    /// Rights granted to requesters, `qp_access_flags`. Local accesses do not need them.
    pub requester_access: u32,
    /// Number of the protection domain, or [`OwningPdOrQp::NO_DOMAIN`].
    pub pd_number: u32,
    /// Queue pair number, which type 2 windows check.
    pub qpn: u32,
}

impl QpMemoryRights {
    /// Makes the fields for local accesses of a queue pair in protection domain `domain`.
    #[inline(always)]
    #[must_use]
    pub const fn for_local_access(domain: u32) -> Self {
        Self {
            requester_access: 0,
            pd_number: domain,
            qpn: 0,
        }
    }
}

/// The reason why a work request may not access the bytes: the first condition that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AccessDenied {
    /// The queue pair's `qp_access_flags` do not allow the access.
    QueuePairAccess,
    /// The region or window does not allow the access.
    RegionAccess,
    /// The region is in another protection domain, or the window is for another domain or queue pair.
    WrongPdOrQp,
    /// Some of the bytes are outside the region or window.
    OutOfRange,
}

/// The permission to use a region for one kind of access, without a check of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionGrant {
    start: u64,
    len: u64,
    is_whole_address_space: bool,
}

impl RegionGrant {
    /// A grant that permits only accesses of 0 bytes.
    pub const NOTHING: Self = Self {
        start: u64::MAX,
        len: 0,
        is_whole_address_space: false,
    };

    /// Checks that `len` bytes at `addr` are inside the region.
    ///
    /// # Errors
    /// Returns [`AccessDenied::OutOfRange`] if some of the bytes are outside the region.
    #[inline(always)]
    pub fn permit_range(&self, addr: u64, len: u64) -> Result<PermittedRange, AccessDenied> {
        let offset = addr.wrapping_sub(self.start);
        let inside = addr >= self.start && offset <= self.len && len <= self.len - offset;
        require(inside, AccessDenied::OutOfRange)?;
        Ok(PermittedRange {
            offset,
            len,
            is_in_whole_address_space_region: self.is_whole_address_space,
        })
    }

    /// Permits all bytes of the region.
    #[inline(always)]
    #[must_use]
    pub const fn permit_whole(&self) -> PermittedRange {
        PermittedRange {
            offset: 0,
            len: self.len,
            is_in_whole_address_space_region: self.is_whole_address_space,
        }
    }

    /// Returns true for a region of the whole address space; see [`PermittedRange::is_in_whole_address_space_region`].
    #[inline(always)]
    #[must_use]
    pub const fn is_whole_address_space(&self) -> bool {
        self.is_whole_address_space
    }
}

/// A range of bytes of a region that a work request may access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PermittedRange {
    offset: u64,
    len: u64,
    is_in_whole_address_space_region: bool,
}

impl PermittedRange {
    /// Returns the offset of the first byte from the start of the region.
    #[inline(always)]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Splits the range after `n` bytes, or at its end if it has fewer bytes.
    #[inline(always)]
    #[must_use]
    pub const fn split_at(&self, n: u64) -> (Self, Self) {
        let n = if n < self.len { n } else { self.len };
        let front = Self { len: n, ..*self };
        let back = Self {
            offset: self.offset + n,
            len: self.len - n,
            ..*self
        };
        (front, back)
    }

    /// Returns the number of bytes.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the range has no bytes.
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns true for bytes of a region of the whole address space. Their memory may be unmapped until the first
    /// access.
    #[inline(always)]
    #[must_use]
    pub const fn is_in_whole_address_space_region(&self) -> bool {
        self.is_in_whole_address_space_region
    }
}

/// Checks all conditions except the range, for runs of requests to one region.
///
/// # Errors
/// Returns the first condition that does not hold.
#[inline(always)]
pub fn authorize_region(
    region: &RegionRights,
    access: Access,
    qp: &QpMemoryRights,
) -> Result<RegionGrant, AccessDenied> {
    let flag = access.flag();
    let by_queue_pair = access.is_local() || qp.requester_access & flag != 0;
    require(by_queue_pair, AccessDenied::QueuePairAccess)?;
    require(region.access & flag == flag, AccessDenied::RegionAccess)?;
    let admitted = if access.is_local() {
        region.owner.admits_local(qp.pd_number)
    } else {
        region.owner.admits_remote(qp)
    };
    require(admitted, AccessDenied::WrongPdOrQp)?;
    Ok(RegionGrant {
        start: region.start,
        len: region.len,
        is_whole_address_space: region.owner.is_whole_address_space(),
    })
}

/// Checks whether `qp` may make `access` to `len` bytes at `addr` of `region`.
///
/// # Errors
/// Returns the first condition that does not hold.
#[inline(always)]
pub fn authorize(
    region: &RegionRights,
    (addr, len): (u64, u64),
    access: Access,
    qp: &QpMemoryRights,
) -> Result<PermittedRange, AccessDenied> {
    authorize_region(region, access, qp)?.permit_range(addr, len)
}

#[inline(always)]
fn require(holds: bool, or: AccessDenied) -> Result<(), AccessDenied> {
    if holds || mutation::is_disabled_for_test(or) {
        Ok(())
    } else {
        Err(or)
    }
}

/// Conditions that a test disables, to check that other tests detect the missing condition. Optimised builds omit them.
mod mutation {
    use super::AccessDenied;

    #[cfg(debug_assertions)]
    pub(super) fn is_disabled_for_test(condition: AccessDenied) -> bool {
        use std::sync::OnceLock;

        static LEFT_OUT: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
        LEFT_OUT
            .get_or_init(|| std::env::var_os("VERBATIM_TEST_WITHOUT_RIGHT"))
            .as_ref()
            .is_some_and(|name| *name == *format!("{condition:?}"))
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub(super) const fn is_disabled_for_test(_: AccessDenied) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
