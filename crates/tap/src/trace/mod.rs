//! The trace: one line for each verb of a program, in one file for all processes of a command.
//!
//! - `legend`: the description of lines at the head of the file;
//! - `file`: appends whole lines to the trace file, even if the process crashes or forks;
//! - `names`: short names for handles, and the names of numbers in the headers;
//! - `value`: text of arguments and results; `pointee`: text of structures behind pointers; `call`: the line
//!   of a call;
//! - `control`, `operations`: the functions of the verbs outside the data path, each of which calls the next
//!   layer first;
//! - `line`: parsing of lines, for programs that read a trace;
//! - `data`: lines about work requests and completions, for the functions that count them.
#![allow(
    clippy::macro_metavars_in_unsafe,
    reason = "callers of a traced function promise what its man page asks for, and so may call the next layer's"
)]

mod call;
mod context_operations;
mod control_path;
mod data_path;
mod errno;
mod file;
mod legend;
mod names;
mod parse_line;
mod pointee;
mod value;

pub use call::{TracedCall, append_event_line};
pub(crate) use context_operations::install_tracing_operations;
pub(crate) use control_path::{later_symbols, symbols};
pub(crate) use data_path::{
    PolledCompletion, count_and_trace_empty_poll, start_time_if_tracing, trace_built_list,
    trace_found_completion, trace_found_completions, trace_posted_recvs, trace_posted_sends,
};
pub use file::{TRACE_FILE_ENV_VAR, create_trace_file, is_tracing_on};
pub use names::{HandleKind, HandleNumberingFn, install_numbering_function, number_of};
pub use parse_line::{PostRecv, PostSend, TraceEvent, TraceLine, TracedCompletion};
pub use value::{SyscallStyleResult, TracedArgument, TracedResult};

/// Declares a traced function: a C function that calls `$inner` and writes a line about the call.
///
/// `$inner` is an expression for the function that the traced function calls; the arguments and the result are
/// [`TracedArgument`]s.
#[macro_export]
macro_rules! traced_function {
    ($(#[$meta:meta])* $vis:vis fn $name:ident $(<$P:ident: $bound:path>)? ($( $arg:ident: $type:ty ),* $(,)?) $(-> $ret:ty)?, $shown:expr, $inner:expr) => {
        $(#[$meta])*
        $vis unsafe extern "C" fn $name $(<$P: $bound>)? ($( $arg: $type ),*) $(-> $ret)? {
            // SAFETY: the caller promises the contract of the inner function. Arguments are read only as far
            // as that function may read them.
            unsafe {
                #[allow(unused_mut)]
                let mut call = $crate::trace::TracedCall::begin_line($shown);
                $( call.add_input(stringify!($arg), $arg); )*
                let result = ($inner)($( $arg ),*);
                #[allow(unused_variables)]
                let good = call.add_result(result);
                $( if good { call.add_output(stringify!($arg), $arg); } )*
                call.append_line();
                result
            }
        }
    };
}
