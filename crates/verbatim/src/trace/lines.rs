//! A reader of the lines of a trace that pass a filter.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tap::trace::Line;

use super::filter::{Filter, Queues};

/// A reader of the lines of a trace that pass `filter`.
pub(super) struct Lines<'a> {
    filter: &'a Filter,
    /// The queue pairs of all lines so far, whether or not they pass the filter.
    pub(super) queues: Queues,
    file: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Lines of verbs read so far.
    pub(super) read: u64,
    /// Lines that are neither verbs nor comments.
    pub(super) strange: u64,
}

impl<'a> Lines<'a> {
    pub(super) fn open(path: &Path, filter: &'a Filter) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self {
            filter,
            queues: Queues::default(),
            file: BufReader::new(file),
            path: path.to_owned(),
            buffer: Vec::new(),
            read: 0,
            strange: 0,
        })
    }

    /// Returns the next line that passes the filter.
    pub(super) fn next(&mut self) -> Result<Option<Line>> {
        loop {
            self.buffer.clear();
            let read = self.file.read_until(b'\n', &mut self.buffer);
            if read.with_context(|| format!("cannot read {}", self.path.display()))? == 0 {
                return Ok(None);
            }
            let text = String::from_utf8_lossy(&self.buffer);
            if text.starts_with('#') || text.trim().is_empty() {
                continue;
            }
            match Line::parse(&text) {
                Some(line) => {
                    self.read += 1;
                    self.queues.note(&line);
                    if self.filter.admits(&line, &self.queues) {
                        return Ok(Some(line));
                    }
                }
                None => self.strange += 1,
            }
        }
    }
}
