//! The boundary between C and the verbs: `c_edge`, and the rules that only verbs have.
//!
//! - A handle stays a raw pointer that is not dereferenced: [`live`](crate::live_handles) looks it up.
//! - A fault plan may refuse verbs outside the data path.

use verbs_abi::ibv_grh;

pub(super) use c_edge::{
    Arg, In, InConst, InOut, OrMinusOne, Out, Ret, c_functions, set_errno, slice_from_c,
};

/// The 40 bytes in front of a UD payload, at any alignment; zeroes for NULL.
pub(super) struct Grh(pub(super) [u8; 40]);

impl Arg for Grh {
    type C = *mut ibv_grh;
    unsafe fn from_c(c: *mut ibv_grh) -> Self {
        if c.is_null() {
            return Self([0; 40]);
        }
        // SAFETY: not NULL (above), so 40 readable bytes (contract of `from_c`); read without regard to alignment.
        Self(unsafe { c.cast::<[u8; 40]>().read_unaligned() })
    }
}

/// Defines the C functions of verbs outside the data path, which a fault plan may refuse: `name => verb, (arguments) ->
/// result;`.
macro_rules! control_verbs {
    ($($(#[$meta:meta])* $vis:vis $name:ident => $verb:path, ($($arg:ident: $type:ty),*) -> $ret:ty;)*) => {$(
        $(#[$meta])*
        #[allow(unsafe_code)]
        $vis unsafe extern "C" fn $name(
            $($arg: <$type as $crate::abi::edge::Arg>::C),*
        ) -> <$ret as $crate::abi::edge::Ret>::C {
            const NAME: &str = $crate::abi::fault_injection::strip_doubled_ibv_prefix(concat!("ibv_", stringify!($name)));
            if $crate::faults::has_plan() {
                let addresses: &[usize] = &[$(<$type as $crate::abi::edge::Arg>::handle_address(&$arg)),*];
                let first = addresses.first().copied().unwrap_or(0);
                let refused = $crate::abi::fault_injection::decide_injected_errno(NAME, first)
                    .and_then(<$ret as $crate::abi::edge::Ret>::refused_with_errno);
                if let Some(refused) = refused {
                    return $crate::abi::edge::Ret::into_c(refused);
                }
            }
            let result: $ret = $verb($({
                // SAFETY: the caller keeps to the man page of the verb, which is all that `from_c` asks for.
                unsafe { <$type as $crate::abi::edge::Arg>::from_c($arg) }
            }),*);
            if let Some(errno) = $crate::abi::edge::Ret::errno_if_failed(&result) {
                $crate::why::report_refused_verb(NAME, errno);
            }
            $crate::abi::edge::Ret::into_c(result)
        }
    )*};
}
pub(super) use control_verbs;
