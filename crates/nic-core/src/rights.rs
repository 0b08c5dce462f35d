//! May a work request touch these bytes? The one place where that is decided.
//!
//! Local buffers (SGEs with an L_Key, SEND placement) and remote memory (an R_Key: WRITE, READ, atomics, FLUSH) pass
//! the same four conditions. They are those of IBTA vol. 1, 10.6.3 and 10.7.2:
//!
//! 1. the queue pair that executes a remote request allows the access ([`Denied::QueuePairAccess`]),
//! 2. the memory region or window allows it ([`Denied::RegionAccess`]),
//! 3. the region lies in the protection domain, or the window admits the queue pair ([`Denied::Domain`]),
//! 4. the bytes lie within it ([`Denied::Range`]).
//!
//! [`authorize`] checks all of them. A run of WRITEs to one region checks the first three once, with [`authorize_region`],
//! and the fourth for each WRITE, with [`Grant::range`]. Nobody but these makes a [`Permitted`].
//!
//! ```
//! use nic_core::rights::{Access, Denied, Owner, QueuePair, Region, authorize, flag};
//!
//! let region = Region { start: 4096, len: 64, access: flag::REMOTE_READ, owner: Owner::domain(7) };
//! let qp = QueuePair { access: flag::REMOTE_READ | flag::REMOTE_WRITE, domain: 7, qpn: 11 };
//! assert_eq!(authorize(&region, (4100, 60), Access::RemoteRead, &qp).unwrap().offset(), 4);
//! assert_eq!(authorize(&region, (4100, 61), Access::RemoteRead, &qp), Err(Denied::Range));
//! assert_eq!(authorize(&region, (4100, 60), Access::RemoteWrite, &qp), Err(Denied::RegionAccess));
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
    /// Reads a local buffer: the payload of SEND and WRITE. Every region allows it.
    LocalRead,
    /// Writes a local buffer: the placement of a message, the result of READ and atomics.
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
    /// The bit of [`flag`] that allows it; 0 where no bit is needed.
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

    /// Is it by an L_Key?
    #[inline(always)]
    #[must_use]
    pub const fn is_local(self) -> bool {
        matches!(self, Self::LocalRead | Self::LocalWrite)
    }

    /// Does it change the memory?
    #[inline(always)]
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(
            self,
            Self::LocalWrite | Self::RemoteWrite | Self::RemoteAtomic
        )
    }
}

/// Whom a region or a window belongs to: one word of the table of keys.
///
/// A plain region's word is the number of its protection domain. Windows, and regions of the whole address space, have
/// upper bits that no such number has. So one comparison admits the usual case and sends the others on a longer way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner(u32);

impl Owner {
    /// Numbers of protection domains are 1 and more, and less than this.
    pub const MAX_DOMAIN: u32 = 1 << 30;

    /// The domain of a queue pair that is in no protection domain (an XRC target). No region and no window has it.
    pub const NO_DOMAIN: u32 = u32::MAX;

    const WHOLE_SPACE: u32 = 1 << 30;
    const TYPE_1: u32 = 1 << 31;
    const TYPE_2: u32 = 3 << 30;

    /// A region of protection domain `number`.
    #[inline]
    #[must_use]
    pub const fn domain(number: u32) -> Self {
        Self(number)
    }

    /// A region of the whole address space (implicit on-demand paging) of protection domain `number`.
    #[inline]
    #[must_use]
    pub const fn whole_space(number: u32) -> Self {
        Self(Self::WHOLE_SPACE | number)
    }

    /// A window of type 1 of protection domain `number`: for every queue pair of the domain.
    #[inline]
    #[must_use]
    pub const fn window_type_1(number: u32) -> Self {
        Self(Self::TYPE_1 | number)
    }

    /// A window of type 2 that queue pair `qpn` has bound: for that queue pair alone (type 2B of IBTA vol. 1,
    /// 10.6.7.2.3).
    #[inline]
    #[must_use]
    pub const fn window_type_2(qpn: u32) -> Self {
        Self(Self::TYPE_2 | qpn)
    }

    /// From the word in a table, which may say anything.
    #[inline(always)]
    #[must_use]
    pub const fn from_word(word: u32) -> Self {
        Self(word)
    }

    /// As the word in a table.
    #[inline]
    #[must_use]
    pub const fn word(self) -> u32 {
        self.0
    }

    /// The number of its protection domain; `None` for a window of type 2, which belongs to a queue pair.
    #[inline]
    #[must_use]
    pub const fn number(self) -> Option<u32> {
        if self.0 & Self::TYPE_2 == Self::TYPE_2 {
            None
        } else {
            Some(self.0 & (Self::MAX_DOMAIN - 1))
        }
    }

    /// Whether it is a window's, not a region's.
    #[inline]
    #[must_use]
    pub const fn is_window(self) -> bool {
        self.0 & Self::TYPE_1 != 0
    }

    /// The same in a process that calls the protection domain by another `number`.
    #[inline]
    #[must_use]
    pub const fn in_domain(self, number: u32) -> Self {
        Self(self.0 & !(Self::MAX_DOMAIN - 1) | number)
    }

    /// Does it admit local buffers in protection domain `domain`? No window's key is an L_Key.
    #[inline(always)]
    const fn admits_local(self, domain: u32) -> bool {
        self.0 == domain || self.0 == Self::WHOLE_SPACE | domain
    }

    /// Does it admit requests to a queue pair?
    #[inline(always)]
    const fn admits_remote(self, qp: &QueuePair) -> bool {
        self.admits_local(qp.domain)
            || self.0 == Self::TYPE_1 | qp.domain
            || self.0 == Self::TYPE_2 | qp.qpn
    }

    /// Is it a region of the whole address space?
    #[inline(always)]
    const fn is_whole_space(self) -> bool {
        self.0 & Self::TYPE_2 == Self::WHOLE_SPACE
    }
}

/// A registered memory region or a bound window, as far as rights depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The address by which work requests name its first byte.
    pub start: u64,
    /// Its length in bytes.
    pub len: u64,
    /// The access that it allows: bits of [`flag`], among others that mean nothing here.
    pub access: u32,
    /// Whom it belongs to.
    pub owner: Owner,
}

/// The queue pair that executes a request on its side's memory, as far as rights depend on it.
///
/// That is the responder for remote accesses, and the queue pair (or receive queue) that has the SGEs for local ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueuePair {
    /// `qp_access_flags`: what it allows requesters. Local accesses do not ask.
    pub access: u32,
    /// Number of its protection domain, or [`Owner::NO_DOMAIN`].
    pub domain: u32,
    /// Its number, which windows of type 2 ask for.
    pub qpn: u32,
}

impl QueuePair {
    /// A user of SGEs of protection domain `domain`.
    #[inline(always)]
    #[must_use]
    pub const fn local(domain: u32) -> Self {
        Self {
            access: 0,
            domain,
            qpn: 0,
        }
    }
}

/// Why a work request may not touch the bytes: the first condition that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The queue pair's `qp_access_flags` do not allow the access.
    QueuePairAccess,
    /// The region or window does not allow the access.
    RegionAccess,
    /// The region lies in another protection domain, or the window is for another one or another queue pair.
    Domain,
    /// The bytes do not lie within the region.
    Range,
}

/// All conditions but the range hold: the region may be used for one kind of access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    start: u64,
    len: u64,
    on_demand: bool,
}

impl Grant {
    /// Allows nothing but no bytes.
    pub const NOTHING: Self = Self {
        start: u64::MAX,
        len: 0,
        on_demand: false,
    };

    /// Checks that `len` bytes at `addr` lie within the region.
    ///
    /// # Errors
    /// [`Denied::Range`] where they do not.
    #[inline(always)]
    pub fn range(&self, addr: u64, len: u64) -> Result<Permitted, Denied> {
        let offset = addr.wrapping_sub(self.start);
        let inside = addr >= self.start && offset <= self.len && len <= self.len - offset;
        require(inside, Denied::Range)?;
        Ok(Permitted {
            offset,
            len,
            on_demand: self.on_demand,
        })
    }

    /// All bytes of the region.
    #[inline(always)]
    #[must_use]
    pub const fn whole(&self) -> Permitted {
        Permitted {
            offset: 0,
            len: self.len,
            on_demand: self.on_demand,
        }
    }

    /// As for [`Permitted::is_on_demand`].
    #[inline(always)]
    #[must_use]
    pub const fn is_on_demand(&self) -> bool {
        self.on_demand
    }
}

/// Bytes of a region that a work request may touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Permitted {
    offset: u64,
    len: u64,
    on_demand: bool,
}

impl Permitted {
    /// Where they begin, from the region's first byte on.
    #[inline(always)]
    #[must_use]
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// The first `n` of them, and those behind: fewer where there are not so many.
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

    /// How many there are.
    #[inline(always)]
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Are there none?
    #[inline(always)]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// They are of a region of the whole address space: whether there is memory shows when they are touched.
    #[inline(always)]
    #[must_use]
    pub const fn is_on_demand(&self) -> bool {
        self.on_demand
    }
}

/// Checks everything but the range: for runs of requests to one region.
///
/// # Errors
/// The first condition that does not hold.
#[inline(always)]
pub fn authorize_region(region: &Region, access: Access, qp: &QueuePair) -> Result<Grant, Denied> {
    let flag = access.flag();
    let by_queue_pair = access.is_local() || qp.access & flag != 0;
    require(by_queue_pair, Denied::QueuePairAccess)?;
    require(region.access & flag == flag, Denied::RegionAccess)?;
    let admitted = if access.is_local() {
        region.owner.admits_local(qp.domain)
    } else {
        region.owner.admits_remote(qp)
    };
    require(admitted, Denied::Domain)?;
    Ok(Grant {
        start: region.start,
        len: region.len,
        on_demand: region.owner.is_whole_space(),
    })
}

/// May `access` to `len` bytes at `addr` of `region` be made for `qp`?
///
/// # Errors
/// The first condition that does not hold.
#[inline(always)]
pub fn authorize(
    region: &Region,
    (addr, len): (u64, u64),
    access: Access,
    qp: &QueuePair,
) -> Result<Permitted, Denied> {
    authorize_region(region, access, qp)?.range(addr, len)
}

#[inline(always)]
fn require(holds: bool, or: Denied) -> Result<(), Denied> {
    if holds || mutation::ignores(or) {
        Ok(())
    } else {
        Err(or)
    }
}

/// Conditions that a test leaves out, to see that others notice. There is none in an optimised build.
mod mutation {
    use super::Denied;

    #[cfg(debug_assertions)]
    pub(super) fn ignores(condition: Denied) -> bool {
        use std::sync::OnceLock;

        static LEFT_OUT: OnceLock<Option<std::ffi::OsString>> = OnceLock::new();
        LEFT_OUT
            .get_or_init(|| std::env::var_os("VERBATIM_TEST_WITHOUT_RIGHT"))
            .as_ref()
            .is_some_and(|name| *name == *format!("{condition:?}"))
    }

    #[cfg(not(debug_assertions))]
    #[inline(always)]
    pub(super) const fn ignores(_: Denied) -> bool {
        false
    }
}

#[cfg(test)]
mod tests;
