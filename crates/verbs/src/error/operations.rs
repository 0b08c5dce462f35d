//! The error of each kind of call.

use std::io;

use crate::types::{Access, QpState};

/// Defines error enums. Each variant holds the verb and the reason beside its own fields.
macro_rules! operation_errors {
    ($(
        $(#[$doc:meta])*
        $name:ident {
            $( $(#[$vdoc:meta])* $variant:ident { $( $(#[$fdoc:meta])* $field:ident: $ty:ty, )* } => $text:literal; )*
        }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, thiserror::Error)]
            #[non_exhaustive]
            pub enum $name {
                $(
                    $(#[$vdoc])*
                    #[error($text)]
                    #[non_exhaustive]
                    $variant {
                        $( $(#[$fdoc])* $field: $ty, )*
                        /// The verb, as in `verbs.h`.
                        verb: &'static str,
                        /// The reason; `raw_os_error()` is the errno.
                        source: io::Error,
                    },
                )*
            }

            impl $name {
                /// Returns the verb's name, as in `verbs.h` (`ibv_create_qp`).
                pub fn verb(&self) -> &'static str {
                    match self {
                        $( Self::$variant { verb, .. } => verb, )*
                    }
                }

                /// Returns the errno; 0 if the call was refused before it reached the provider.
                pub fn errno(&self) -> i32 {
                    self.os_error().raw_os_error().unwrap_or(0)
                }

                /// Returns the reason as an error of the system.
                pub fn os_error(&self) -> &io::Error {
                    match self {
                        $( Self::$variant { source, .. } => source, )*
                    }
                }

                /// Returns the verb and the reason.
                #[allow(dead_code, reason = "only kinds that become others need it")]
                pub(crate) fn into_parts(self) -> (&'static str, io::Error) {
                    match self {
                        $( Self::$variant { verb, source, .. } => (verb, source), )*
                    }
                }
            }

            impl From<$name> for io::Error {
                fn from(e: $name) -> Self {
                    io::Error::new(e.os_error().kind(), e)
                }
            }
        )*
    };
}

operation_errors! {
    /// The error of [`Provider::devices`](crate::Provider::devices) and [`Provider::device`](crate::Provider::device).
    DeviceError {
        /// The provider has no device of that name. The message lists its devices. Errno 0.
        NoSuchDevice {
            /// The devices that the provider has.
            existing: Vec<String>,
        } => "{verb} failed: {source}";
        /// The provider cannot list its devices, for example because the software NIC's fabric cannot be joined.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of [`Device::open`](crate::Device::open).
    OpenError {
        /// `EACCES`, `EPERM`: the process may not use the device.
        NotPermitted {
            /// The name of the device.
            device: String,
        } => "{verb} failed: {source}: this process may not use {device}; it needs access to /dev/infiniband/uverbs*";
        /// Another errno.
        Refused {
            /// The name of the device.
            device: String,
        } => "{verb} failed: {source} (device {device})";
    }

    /// The error of queries: of a device, its ports and tables, and of a queue pair.
    QueryError {
        /// The device has no port of that number.
        NoSuchPort {
            /// The port that the caller asked for.
            port_num: u8,
            /// The number of ports; they count from 1.
            ports: u8,
        } => "{verb} failed: {source}: there is no port {port_num}; the device has ports 1 to {ports}";
        /// The port's table has no such entry.
        NoSuchEntry {
            /// The port.
            port_num: u8,
            /// The index that the caller asked for.
            index: u32,
            /// The length of the table; indices count from 0.
            entries: u32,
        } => "{verb} failed: {source}: there is no entry {index}; the table of port {port_num} has {entries} entries";
        /// Another errno, such as `EIO` for a device that was removed.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of creating a protection domain, completion channel, completion queue or shared receive queue.
    CreateError {
        /// `EINVAL`: a size is beyond the limit of the device.
        LimitExceeded {
            /// The attribute, as in `verbs.h` (`cqe`).
            attribute: &'static str,
            /// The size that the caller asked for.
            requested: u32,
            /// The limit of the device.
            limit: u32,
        } => "{verb} failed: {source}: {attribute} is {requested}, and the device allows 1 to {limit}";
        /// The objects belong to different contexts. Errno 0.
        OtherContext {} => "{verb} failed: {source}";
        /// `EMFILE`, `ENFILE`: the process or the system has no file descriptors left.
        TooManyFiles {} => "{verb} failed: {source}: close descriptors, or raise the limit (see `ulimit -n`)";
        /// `ENOMEM`: there is no memory left, or the device has no more objects of this kind.
        NoResources {} => "{verb} failed: {source}: the device has no more objects of this kind, or there is no memory";
        /// Another errno.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of [`ProtectionDomain::ud_destination`](crate::ProtectionDomain::ud_destination).
    AddressError {
        /// The peer's endpoint has no Q_Key: it is not a UD queue pair. Errno 0.
        NoQKey {} => "{verb} failed: {source}";
        /// `EHOSTUNREACH`, `ENETUNREACH`, `ETIMEDOUT`: the port cannot reach the peer.
        Unreachable {} => "{verb} failed: {source}: the port cannot reach the peer; check the GID index and the routes";
        /// Another errno, or a failed query of the port.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of [`QpBuilder::build`](crate::QpBuilder::build).
    CreateQpError {
        /// A capability is beyond the limit of the device.
        LimitExceeded {
            /// The attribute, as in `verbs.h` (`max_send_wr`).
            attribute: &'static str,
            /// The size that the caller asked for.
            requested: u32,
            /// The limit of the device.
            limit: u32,
        } => "{verb} failed: {source}: {attribute} is {requested}, and the device allows at most {limit}";
        /// The device grants less inline payload than [`max_inline_data`](crate::QpBuilder::max_inline_data) requires.
        /// Errno 0. [`max_inline_data_if_supported`](crate::QpBuilder::max_inline_data_if_supported) accepts less.
        InlineTooLong {
            /// The bytes that the caller requires.
            requested: u32,
            /// The bytes that the device grants.
            granted: u32,
        } => "{verb} failed: {source}";
        /// `EOPNOTSUPP`, `ENOSYS`: the device lacks the transport; see
        /// [`Context::capabilities`](crate::Context::capabilities).
        Unsupported {} => "{verb} failed: {source}";
        /// The CQs, the SRQ and the protection domain belong to different contexts. Errno 0.
        OtherContext {} => "{verb} failed: {source}";
        /// `ENOMEM`: there is no memory left, or the device has no more queue pairs.
        NoResources {} => "{verb} failed: {source}: the device has no more queue pairs, or there is no memory";
        /// Another errno, or a failed query of the port, or change of the state.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of allocating and registering memory.
    RegisterError {
        /// No memory has this length: it is 0, or beyond the address space.
        Length {
            /// The length in bytes that the caller asked for.
            len: usize,
        } => "{verb} failed: {source}: no region has {len} bytes";
        /// `EINVAL`: remote WRITE and atomics require [`Access::LOCAL_WRITE`] (`ibv_reg_mr(3)`).
        Access {
            /// The access that the caller asked for.
            access: Access,
        } => "{verb} failed: {source}: remote WRITEs and atomics need Access::LOCAL_WRITE, too";
        /// `EFAULT`: the process cannot read, or not write, the memory.
        BadAddress {} => "{verb} failed: {source}: the process cannot access the memory in this way";
        /// `ENOMEM`, `EAGAIN` of `ibv_reg_mr`: the memory cannot be locked, or the device has no more regions.
        LockedMemory {
            /// The length in bytes.
            len: usize,
        } => "{verb} failed: {source}: locked memory may be limited (see `ulimit -l`); the software NIC's memory may be full (see `df /dev/shm`)";
        /// The system has no memory of this length.
        NoMemory {
            /// The length in bytes that the caller asked for.
            len: usize,
        } => "{verb} failed: {source}: the system has no {len} bytes of free memory";
        /// Too few huge pages are free.
        NoHugePages {
            /// The length in bytes that the caller asked for.
            len: usize,
        } => "{verb} failed: {source}: {len} bytes need more huge pages of 2 MiB; reserve some (`sysctl vm.nr_hugepages`)";
        /// Another errno.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of changing a queue pair's state: `connect`, `move_to_error_state`.
    ModifyError {
        /// `EINVAL`: an attribute is beyond its range or the limit of the device.
        OutOfRange {
            /// The state of the queue pair.
            from: QpState,
            /// The state to which the call takes it.
            to: QpState,
            /// The attribute, as in `verbs.h` (`max_rd_atomic`).
            attribute: &'static str,
            /// The value that the caller asked for.
            value: u32,
            /// The largest allowed value.
            limit: u32,
        } => "{verb} failed: {source}: {from} to {to}: {attribute} is {value}, and at most {limit} is allowed";
        /// `EHOSTUNREACH`, `ENETUNREACH`, `ETIMEDOUT`: the port cannot reach the peer.
        Unreachable {
            /// The state of the queue pair.
            from: QpState,
            /// The state to which the call takes it.
            to: QpState,
        } => "{verb} failed: {source}: {from} to {to}: the port cannot reach the peer; check the GID index and the routes";
        /// Another errno. `EINVAL`: the state does not allow the change, or the provider refuses an attribute.
        Refused {
            /// The state of the queue pair.
            from: QpState,
            /// The state to which the call takes it.
            to: QpState,
        } => "{verb} failed: {source}: {from} to {to}";
    }

    /// The error of [`SharedReceiveQueue::set_limit`](crate::SharedReceiveQueue::set_limit).
    ModifySrqError {
        /// `EINVAL`: the limit is beyond the size of the queue.
        LimitExceeded {
            /// The limit that the caller asked for.
            limit: u32,
            /// The RECVs that the queue can hold.
            max_wr: u32,
        } => "{verb} failed: {source}: the limit is {limit}, and the queue holds {max_wr} RECVs";
        /// Another errno.
        Refused {} => "{verb} failed: {source}";
    }

    /// The error of [`CompletionQueue::poll`](crate::CompletionQueue::poll).
    PollError {
        /// The completion queue is in error. All errnos mean this: it overran, or its device was removed.
        CqError {} => "{verb} failed: {source}: the completion queue has overrun, or its device is gone; create a larger one";
    }

    /// The error of requesting and receiving events.
    EventError {
        /// `EINTR`: a signal came before an event. Call again.
        Interrupted {} => "{verb} failed: {source}";
        /// `EAGAIN`: no event is there, and the descriptor does not block.
        WouldBlock {} => "{verb} failed: {source}";
        /// Another errno, such as `EIO` for a device that was removed.
        Refused {} => "{verb} failed: {source}";
    }
}

const fn is_unreachable_errno(errno: i32) -> bool {
    matches!(
        errno,
        libc::EHOSTUNREACH | libc::ENETUNREACH | libc::ETIMEDOUT
    )
}

fn errno_or_zero(source: &io::Error) -> i32 {
    source.raw_os_error().unwrap_or(0)
}

impl OpenError {
    pub(crate) fn of(verb: &'static str, device: String, source: io::Error) -> Self {
        match errno_or_zero(&source) {
            libc::EACCES | libc::EPERM => Self::NotPermitted {
                device,
                verb,
                source,
            },
            _ => Self::Refused {
                device,
                verb,
                source,
            },
        }
    }
}

impl QueryError {
    pub(crate) fn of(verb: &'static str, source: io::Error) -> Self {
        Self::Refused { verb, source }
    }
}

impl CreateError {
    pub(crate) fn of(verb: &'static str, source: io::Error) -> Self {
        match errno_or_zero(&source) {
            libc::EMFILE | libc::ENFILE => Self::TooManyFiles { verb, source },
            libc::ENOMEM => Self::NoResources { verb, source },
            _ => Self::Refused { verb, source },
        }
    }

    /// The same of an object with sizes: each has its name, its value and the limit of the device.
    pub(crate) fn of_sizes(
        verb: &'static str,
        source: io::Error,
        sizes: &[(&'static str, u32, u32)],
    ) -> Self {
        let beyond = sizes
            .iter()
            .find(|(_, size, limit)| !(1..=*limit).contains(size));
        match (errno_or_zero(&source), beyond) {
            (libc::EINVAL | libc::ENOMEM, Some(&(attribute, requested, limit))) => {
                Self::LimitExceeded {
                    attribute,
                    requested,
                    limit,
                    verb,
                    source,
                }
            }
            _ => Self::of(verb, source),
        }
    }
}

impl AddressError {
    pub(crate) fn of(verb: &'static str, source: io::Error) -> Self {
        if is_unreachable_errno(errno_or_zero(&source)) {
            Self::Unreachable { verb, source }
        } else {
            Self::Refused { verb, source }
        }
    }
}

impl From<QueryError> for AddressError {
    fn from(e: QueryError) -> Self {
        let (verb, source) = e.into_parts();
        Self::Refused { verb, source }
    }
}

impl CreateQpError {
    /// The error of `ibv_create_qp`; each size has its name, its value and the limit of the device.
    pub(crate) fn of(
        verb: &'static str,
        source: io::Error,
        sizes: &[(&'static str, u32, u32)],
    ) -> Self {
        let beyond = sizes.iter().find(|(_, size, limit)| size > limit);
        match (errno_or_zero(&source), beyond) {
            (libc::EOPNOTSUPP | libc::ENOSYS, _) => Self::Unsupported { verb, source },
            (libc::EINVAL | libc::ENOMEM, Some(&(attribute, requested, limit))) => {
                Self::LimitExceeded {
                    attribute,
                    requested,
                    limit,
                    verb,
                    source,
                }
            }
            (libc::ENOMEM, None) => Self::NoResources { verb, source },
            _ => Self::Refused { verb, source },
        }
    }
}

impl From<QueryError> for CreateQpError {
    fn from(e: QueryError) -> Self {
        let (verb, source) = e.into_parts();
        Self::Refused { verb, source }
    }
}

impl From<ModifyError> for CreateQpError {
    fn from(e: ModifyError) -> Self {
        let (verb, source) = e.into_parts();
        Self::Refused { verb, source }
    }
}

impl RegisterError {
    /// The error of `ibv_reg_mr`.
    pub(crate) fn of_registration(
        verb: &'static str,
        source: io::Error,
        len: usize,
        access: Access,
    ) -> Self {
        let remote_writes = Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        let lacks_local = access.bits() & remote_writes.bits() != 0
            && access.bits() & Access::LOCAL_WRITE.bits() == 0;
        match errno_or_zero(&source) {
            libc::EINVAL if len == 0 => Self::Length { len, verb, source },
            libc::EINVAL if lacks_local => Self::Access {
                access,
                verb,
                source,
            },
            libc::EFAULT => Self::BadAddress { verb, source },
            libc::ENOMEM | libc::EAGAIN => Self::LockedMemory { len, verb, source },
            _ => Self::Refused { verb, source },
        }
    }

    /// The error of an allocation.
    pub(crate) fn of_allocation(
        verb: &'static str,
        source: io::Error,
        len: usize,
        in_huge_pages: bool,
    ) -> Self {
        match source.kind() {
            io::ErrorKind::InvalidInput => Self::Length { len, verb, source },
            io::ErrorKind::OutOfMemory if in_huge_pages => Self::NoHugePages { len, verb, source },
            io::ErrorKind::OutOfMemory => Self::NoMemory { len, verb, source },
            _ => Self::Refused { verb, source },
        }
    }
}

impl ModifyError {
    /// The error of a change of state; each range has the attribute's name, its value and the largest allowed one.
    pub(crate) fn of(
        verb: &'static str,
        source: io::Error,
        (from, to): (QpState, QpState),
        ranges: &[(&'static str, u32, u32)],
    ) -> Self {
        let beyond = ranges.iter().find(|(_, value, limit)| value > limit);
        match (errno_or_zero(&source), beyond) {
            (libc::EINVAL, Some(&(attribute, value, limit))) => Self::OutOfRange {
                from,
                to,
                attribute,
                value,
                limit,
                verb,
                source,
            },
            (errno, _) if is_unreachable_errno(errno) => Self::Unreachable {
                from,
                to,
                verb,
                source,
            },
            _ => Self::Refused {
                from,
                to,
                verb,
                source,
            },
        }
    }
}

impl ModifySrqError {
    pub(crate) fn of(verb: &'static str, source: io::Error, limit: u32, max_wr: u32) -> Self {
        match errno_or_zero(&source) {
            libc::EINVAL if limit > max_wr => Self::LimitExceeded {
                limit,
                max_wr,
                verb,
                source,
            },
            _ => Self::Refused { verb, source },
        }
    }
}

impl EventError {
    pub(crate) fn of(verb: &'static str, source: io::Error) -> Self {
        match errno_or_zero(&source) {
            libc::EINTR => Self::Interrupted { verb, source },
            libc::EAGAIN => Self::WouldBlock { verb, source },
            _ => Self::Refused { verb, source },
        }
    }
}
