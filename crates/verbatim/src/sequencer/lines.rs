//! What `serve` and `client` print with `--json`, one object per line, and the ladder reads.

use std::io::{BufRead, BufReader};
use std::process::ChildStdout;

use anyhow::{Context, Result, bail};
use sequencer::{ClientReport, Design, ServerStats, Verdict};
use serde::{Deserialize, Serialize};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", content = "data", rename_all = "snake_case")]
pub(super) enum Line {
    /// `serve`: clients can come.
    Listening {
        /// Where, on TCP.
        address: String,
        /// What is served.
        design: Design,
        /// The first number that it will give.
        next: u64,
    },
    /// `serve`: what it did, when it ends.
    Stats(ServerStats),
    /// `client`: what one of its threads got.
    Report(Box<ClientReport>),
    /// `client`: what the checker says of all its threads.
    Verdict(Verdict),
}

/// Reads lines of a child.
pub(super) struct Lines {
    reader: BufReader<ChildStdout>,
    who: &'static str,
}

impl Lines {
    pub(super) fn new(out: ChildStdout, who: &'static str) -> Lines {
        Lines {
            reader: BufReader::new(out),
            who,
        }
    }

    /// The next line; `None` when the child has ended.
    pub(super) fn next(&mut self) -> Result<Option<Line>> {
        let mut text = String::new();
        let read = self.reader.read_line(&mut text);
        if read.with_context(|| format!("cannot hear the {}", self.who))? == 0 {
            return Ok(None);
        }
        let line = serde_json::from_str(&text)
            .with_context(|| format!("the {} said {:?}", self.who, text.trim_end()))?;
        Ok(Some(line))
    }

    /// The next line, which must be there.
    pub(super) fn expect(&mut self) -> Result<Line> {
        match self.next()? {
            Some(line) => Ok(line),
            None => bail!("the {} ended early; its message is above", self.who),
        }
    }
}
