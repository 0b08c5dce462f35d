//! The errors of the verbs API: an enum for each kind of call, and [`VerbError`] for all of them.

mod operations;
mod post;

use std::io;

pub use operations::{
    AddressError, CreateError, CreateQpError, DeviceError, EventError, ModifyError, ModifySrqError,
    OpenError, PollError, QueryError, RegisterError,
};
pub use post::{PostError, PostErrorKind};

/// The error of any verb except the posts.
///
/// Each call returns the enum of its kind; `?` converts the enum to this type. For an error type with
/// `#[from] VerbError`, [`from_verb_errors`](crate::from_verb_errors) adds the conversions from these enums.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    /// The devices cannot be listed, or a device is not there.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Attributes cannot be queried.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// An object cannot be created.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// An address handle cannot be created.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A queue pair cannot be created.
    #[error(transparent)]
    CreateQp(#[from] CreateQpError),
    /// Memory cannot be allocated or registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The state of a queue pair cannot be changed.
    #[error(transparent)]
    Modify(#[from] ModifyError),
    /// The limit of a shared receive queue cannot be set.
    #[error(transparent)]
    ModifySrq(#[from] ModifySrqError),
    /// A completion queue cannot be polled.
    #[error(transparent)]
    Poll(#[from] PollError),
    /// Events cannot be requested or received.
    #[error(transparent)]
    Event(#[from] EventError),
    /// A call beside this API failed, such as a function of a connection manager.
    #[error("{verb} failed: {source}")]
    Other {
        /// The function's name.
        verb: &'static str,
        /// The reason; `raw_os_error()` is the errno.
        source: io::Error,
    },
}

/// Evaluates an expression of the error of any kind, which the variant holds.
macro_rules! each_kind {
    ($error:expr, $kind:ident => $value:expr, $verb:ident, $source:ident => $other:expr) => {
        match $error {
            VerbError::Device($kind) => $value,
            VerbError::Open($kind) => $value,
            VerbError::Query($kind) => $value,
            VerbError::Create($kind) => $value,
            VerbError::Address($kind) => $value,
            VerbError::CreateQp($kind) => $value,
            VerbError::Register($kind) => $value,
            VerbError::Modify($kind) => $value,
            VerbError::ModifySrq($kind) => $value,
            VerbError::Poll($kind) => $value,
            VerbError::Event($kind) => $value,
            VerbError::Other {
                verb: $verb,
                source: $source,
            } => $other,
        }
    };
}

impl VerbError {
    /// Returns the verb's name, as in `verbs.h` (`ibv_create_qp`).
    pub fn verb(&self) -> &'static str {
        each_kind!(self, kind => kind.verb(), verb, _source => verb)
    }

    /// Returns the errno; 0 if the call was refused before it reached the provider.
    pub fn errno(&self) -> i32 {
        self.os_error().raw_os_error().unwrap_or(0)
    }

    /// Returns the reason as an error of the system.
    pub fn os_error(&self) -> &io::Error {
        each_kind!(self, kind => kind.os_error(), _verb, source => source)
    }
}

impl From<VerbError> for io::Error {
    fn from(e: VerbError) -> Self {
        io::Error::new(e.os_error().kind(), e)
    }
}

/// Converts the errors of all verbs to an error type that is `From<VerbError>`.
///
/// ```
/// #[derive(Debug)]
/// enum Error {
///     Verb(verbs::VerbError),
/// }
///
/// impl From<verbs::VerbError> for Error {
///     fn from(e: verbs::VerbError) -> Self {
///         Self::Verb(e)
///     }
/// }
///
/// verbs::from_verb_errors!(Error);
///
/// fn open(provider: verbs::Provider) -> Result<verbs::Context, Error> {
///     Ok(provider.device(None)?.open()?) // a DeviceError, and an OpenError
/// }
/// # open(verbs::Provider::softnic()).expect("it opens");
/// ```
#[macro_export]
macro_rules! from_verb_errors {
    ($error:ty) => {
        $crate::from_verb_errors!($error:
            DeviceError OpenError QueryError CreateError AddressError CreateQpError RegisterError ModifyError
            ModifySrqError PollError EventError
        );
    };
    ($error:ty: $($kind:ident)*) => {
        $(
            impl From<$crate::$kind> for $error {
                fn from(e: $crate::$kind) -> Self {
                    Self::from($crate::VerbError::from(e))
                }
            }
        )*
    };
}

/// Returns the error of a call that has just set `errno`.
pub(crate) fn last_error() -> io::Error {
    let error = io::Error::last_os_error();
    // A provider that fails without setting errno must not read as "Success".
    if error.raw_os_error() == Some(0) {
        io::Error::from_raw_os_error(libc::EIO)
    } else {
        error
    }
}

/// Returns the error of a call that was refused before it reached the provider.
pub(crate) fn invalid_input(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, what.into())
}

/// Converts the return value of a verb that returns an errno. Some providers return it negated, or -1 with `errno` set.
pub(crate) fn check_returned_errno(ret: i32) -> Result<(), io::Error> {
    match ret {
        0 => Ok(()),
        r => Err(io::Error::from_raw_os_error(errno_of_return_value(r))),
    }
}

/// Returns the errno for a verb's return value.
pub(crate) fn errno_of_return_value(ret: i32) -> i32 {
    match ret {
        -1 => io::Error::last_os_error()
            .raw_os_error()
            .filter(|&e| e != 0)
            .unwrap_or(libc::EIO),
        r => r.saturating_abs(),
    }
}
