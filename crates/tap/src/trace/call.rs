//! A line about a call.

use std::fmt::Write;

use super::errno::{errno, set_errno};
use super::value::{Outcome, Value};
use crate::session::now_ns;

/// Appends lines that begin with the time and the thread. `lines` are without their newlines.
pub(super) fn append<'a>(at_ns: u64, lines: impl IntoIterator<Item = &'a str>) {
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
    super::file::append(&text);
}

/// Appends a line about something that no verb says, with the time and the thread.
pub fn note(line: &str) {
    if super::is_on() {
        let before = errno();
        append(now_ns(), [line]);
        set_errno(before);
    }
}

/// A call that is going on: its line, as far as it is known.
pub struct Call {
    text: String,
    arguments: usize,
    ended_ns: u64,
    errno: i32,
    /// It takes an event, and says `EAGAIN` where there is none.
    takes_event: bool,
    /// It found nothing, which is not worth a line.
    in_vain: bool,
}

impl Call {
    /// A call of this function.
    #[must_use]
    pub fn begin(function: &str) -> Self {
        Self {
            text: format!("{function}("),
            arguments: 0,
            ended_ns: 0,
            errno: 0,
            takes_event: function.contains("_get_") && function.ends_with("_event"),
            in_vain: false,
        }
    }

    /// Its next argument.
    ///
    /// # Safety
    /// As the function may look at the argument, so does this.
    #[allow(unsafe_code)]
    pub unsafe fn input(&mut self, name: &str, value: impl Value) {
        if self.arguments > 0 {
            self.text.push_str(", ");
        }
        self.arguments += 1;
        self.text.push_str(name);
        self.text.push('=');
        // SAFETY: contract of this function.
        unsafe { value.input(name, &mut self.text) };
    }

    /// Words in the place of an argument.
    pub(super) fn words(&mut self, words: &str) {
        self.arguments += 1;
        self.text.push_str(", ");
        self.text.push_str(words);
    }

    /// What came of it, right after the function returned. True for success.
    ///
    /// # Safety
    /// As [`Call::input`].
    #[allow(unsafe_code)]
    pub unsafe fn result<O: Outcome>(&mut self, result: O) -> bool {
        self.errno = errno();
        self.ended_ns = now_ns();
        self.text.push(')');
        // SAFETY: contract of this function.
        let good = unsafe { result.result(self.errno, &mut self.text) };
        let may_find_nothing = O::MAY_FIND_NOTHING || self.takes_event;
        self.in_vain = may_find_nothing && !good && self.errno == libc::EAGAIN;
        good
    }

    /// What it left in an argument, if that is worth a word.
    ///
    /// # Safety
    /// As [`Call::input`]; the call succeeded.
    #[allow(unsafe_code)]
    pub unsafe fn output(&mut self, name: &str, value: impl Value) {
        let before = self.text.len();
        self.text.push_str(", ");
        self.text.push_str(name);
        self.text.push_str(": ");
        let begin = self.text.len();
        // SAFETY: contract of this function.
        unsafe { value.output(&mut self.text) };
        if self.text.len() == begin {
            self.text.truncate(before);
        }
    }

    /// Writes the line.
    pub fn end(self) {
        if !self.in_vain {
            append(self.ended_ns, [self.text.as_str()]);
        }
        set_errno(self.errno);
    }
}
