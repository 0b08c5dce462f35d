//! A reader of the lines of a trace that pass a filter.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use tap::trace::TraceLine;

use super::filter::{QpNamesAndNumbers, TraceFilter};

/// A reader of the lines of a trace that pass `filter`.
pub(super) struct FilteredLineReader<'a> {
    filter: &'a TraceFilter,
    /// The queue pairs in all lines that were read so far, including lines that do not pass the
    /// filter.
    pub(super) qp_names: QpNamesAndNumbers,
    file: BufReader<File>,
    path: PathBuf,
    buffer: Vec<u8>,
    /// Number of lines about verbs that were read so far.
    pub(super) verb_lines_read: u64,
    /// Number of those that passed the filter.
    pub(super) lines_admitted: u64,
    /// Number of lines that are neither about verbs nor comments.
    pub(super) unparsed_lines: u64,
}

impl<'a> FilteredLineReader<'a> {
    pub(super) fn open(path: &Path, filter: &'a TraceFilter) -> Result<Self> {
        let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Self {
            filter,
            qp_names: QpNamesAndNumbers::default(),
            file: BufReader::new(file),
            path: path.to_owned(),
            buffer: Vec::new(),
            verb_lines_read: 0,
            lines_admitted: 0,
            unparsed_lines: 0,
        })
    }

    /// Returns the next line that passes the filter.
    pub(super) fn next(&mut self) -> Result<Option<TraceLine>> {
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
            match TraceLine::parse(&text) {
                Some(line) => {
                    self.verb_lines_read += 1;
                    self.qp_names.record_created_qp(&line);
                    if self.filter.admits(&line, &self.qp_names) {
                        self.lines_admitted += 1;
                        return Ok(Some(line));
                    }
                }
                None => self.unparsed_lines += 1,
            }
        }
    }
}
