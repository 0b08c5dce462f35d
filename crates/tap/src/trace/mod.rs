//! The trace: what a program did with the verbs, a line a verb, in one file for all processes of a command.
//!
//! - `legend`: what the head of the file says of its lines;
//! - `file`: whole lines at the end of the file, whatever else the process is doing;
//! - `names`: short names for handles, and the names that the headers give to numbers;
//! - `value`: how an argument or a result reads; `pointee`: how what it points to does; `call`: a line about a call;
//! - `control`, `operations`: the functions of the verbs outside the data path, each calling the next layer first;
//! - `line`: what a line says, for those that read a trace;
//! - `data`: lines about work requests and completions, for the functions that count them.
#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "callers of a traced function promise what its man page asks for, and so may call the next layer's"
)]

mod call;
mod control;
mod data;
mod errno;
mod file;
mod legend;
mod line;
mod names;
mod operations;
mod pointee;
mod value;

pub use call::{Call, note};
pub(crate) use control::{later_symbols, symbols};
pub(crate) use data::{Poll, built, empty_poll, found, one_found, posted, recvs_posted, started};
pub use file::{VARIABLE, create, is_on};
pub use line::{Completion, Event, Line, PostRecv, PostSend};
pub use names::{Kind, NumberOf, number_of, numbers_from};
pub(crate) use operations::install;
pub use value::{Outcome, Returned, Value};

/// Tracing one function: declares a C function that calls `$inner` and writes a line about it.
///
/// `$inner` is an expression for the function that does the work; the arguments and the result are [`Value`]s.
#[macro_export]
macro_rules! traced_function {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$P:ident: $bound:path>)? ($( $arg:ident: $type:ty ),* $(,)?) $(-> $ret:ty)?, $shown:expr, $inner:expr) => {
        $(#[$meta])*
        $vis unsafe extern "C" fn $name $(<$P: $bound>)? ($( $arg: $type ),*) $(-> $ret)? {
            // SAFETY: the contract of the function that does the work, which is the caller's; values are looked at
            // as far as that function may look at them.
            unsafe {
                #[allow(unused_mut)]
                let mut call = $crate::trace::Call::begin($shown);
                $( call.input(stringify!($arg), $arg); )*
                let result = ($inner)($( $arg ),*);
                #[allow(unused_variables)]
                let good = call.result(result);
                $( if good { call.output(stringify!($arg), $arg); } )*
                call.end();
                result
            }
        }
    };
}
