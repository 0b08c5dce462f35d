//! The trace line of a call.

use std::fmt::Write;

use super::errno::{errno, set_errno};
use super::value::{TracedArgument, TracedResult};
use crate::mapped_counter_file::now_ns;

/// Appends lines to the trace, each with the time and the thread before it. `lines` have no newlines at
/// their ends.
pub(super) fn append_timestamped_lines<'a>(at_ns: u64, lines: impl IntoIterator<Item = &'a str>) {
    const SECOND: u64 = 1_000_000_000;
    let (pid, tid) = (std::process::id(), rustix::thread::gettid());
    let mut text = String::new();
    for line in lines {
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{}.{:09} {pid}/{} {line}",
            at_ns / SECOND,
            at_ns % SECOND,
            tid.as_raw_nonzero()
        );
    }
    super::file::append_lines(&text);
}

/// Appends a line about an event other than a verb, with the time and the thread.
pub fn append_event_line(line: &str) {
    if super::is_tracing_on() {
        let before = errno();
        append_timestamped_lines(now_ns(), [line]);
        set_errno(before);
    }
}

/// A traced call in progress, with the part of its trace line that is known.
pub struct TracedCall {
    text: String,
    argument_count: usize,
    ended_ns: u64,
    errno: i32,
    /// True if the function takes an event, and fails with `EAGAIN` if no event is pending.
    takes_event: bool,
    /// True if the call found no event; no line is written for such a call.
    found_no_event: bool,
}

impl TracedCall {
    /// Begins the line of a call of `function`.
    #[must_use]
    pub fn begin_line(function: &str) -> Self {
        Self {
            text: format!("{function}("),
            argument_count: 0,
            ended_ns: 0,
            errno: 0,
            takes_event: function.contains("_get_") && function.ends_with("_event"),
            found_no_event: false,
        }
    }

    /// Adds the next argument of the call to the line.
    ///
    /// # Safety
    /// The call's contract permits the called function to read through the argument. This function reads no
    /// more than the called function may read.
    /// more.
    #[allow(unsafe_code)]
    pub unsafe fn add_input(&mut self, name: &str, value: impl TracedArgument) {
        if self.argument_count > 0 {
            self.text.push_str(", ");
        }
        self.argument_count += 1;
        self.text.push_str(name);
        self.text.push('=');
        // SAFETY: contract of this function.
        unsafe { value.write_input(name, &mut self.text) };
    }

    /// Adds text to the line in the place of an argument.
    pub(super) fn add_argument_text(&mut self, words: &str) {
        self.argument_count += 1;
        self.text.push_str(", ");
        self.text.push_str(words);
    }

    /// Adds the result to the line, directly after the function has returned. Returns true if the call
    /// succeeded.
    ///
    /// # Safety
    /// The contract of [`TracedCall::add_input`] applies.
    #[allow(unsafe_code)]
    pub unsafe fn add_result<O: TracedResult>(&mut self, result: O) -> bool {
        self.errno = errno();
        self.ended_ns = now_ns();
        self.text.push(')');
        // SAFETY: contract of this function.
        let good = unsafe { result.write_result(self.errno, &mut self.text) };
        let may_find_nothing = O::EAGAIN_IS_NOT_TRACED || self.takes_event;
        self.found_no_event = may_find_nothing && !good && self.errno == libc::EAGAIN;
        good
    }

    /// Adds to the line the value that the call stored through an argument, if this value is relevant.
    ///
    /// # Safety
    /// The contract of [`TracedCall::add_input`] applies, and the call succeeded.
    #[allow(unsafe_code)]
    pub unsafe fn add_output(&mut self, name: &str, value: impl TracedArgument) {
        let before = self.text.len();
        self.text.push_str(", ");
        self.text.push_str(name);
        self.text.push_str(": ");
        let begin = self.text.len();
        // SAFETY: contract of this function.
        unsafe { value.write_stored_value(&mut self.text) };
        if self.text.len() == begin {
            self.text.truncate(before);
        }
    }

    /// Appends the line to the trace.
    pub fn append_line(self) {
        if !self.found_no_event {
            append_timestamped_lines(self.ended_ns, [self.text.as_str()]);
        }
        set_errno(self.errno);
    }
}
