//! Several conversations over one link: each thread of this side talks to one thread of the other
//! side.
//!
//! Each line consists of the lane's number, a space, and the message. The number and a full stop
//! end the lane.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use anyhow::{Result, anyhow};

use super::WorkerLink;

type SharedWriter = Arc<Mutex<Box<dyn Write + Send>>>;

impl WorkerLink {
    /// Runs `each` in `lanes` threads and returns the results in order. Each thread has a link to
    /// the thread of the same number at the other end. The other end must split its link into as many
    /// threads.
    pub(crate) fn split_into_lanes<R: Send>(
        &mut self,
        lanes: usize,
        each: impl Fn(usize, &mut WorkerLink) -> Result<R> + Sync,
    ) -> Vec<Result<R>> {
        let own = std::mem::replace(&mut self.writer, Box::new(io::sink()));
        let writer: SharedWriter = Arc::new(Mutex::new(own));
        let (lines, receivers): (Vec<_>, Vec<_>) = (0..lanes).map(|_| channel()).unzip();
        let (reader, each) = (&mut self.reader, &each);
        let results = thread::scope(|scope| {
            let thread = |(number, lines)| {
                let mut link = WorkerLink {
                    reader: Box::new(BufReader::new(LaneReader {
                        line_receiver: lines,
                        unread_bytes: Vec::new(),
                    })),
                    writer: Box::new(LaneWriter {
                        lane_index: number,
                        writer: Arc::clone(&writer),
                    }),
                    child: None,
                    thread_barrier: None,
                };
                scope.spawn(move || {
                    let result = each(number, &mut link);
                    if let Err(error) = &result {
                        link.send_failure(error);
                    }
                    result
                })
            };
            let threads: Vec<_> = receivers.into_iter().enumerate().map(thread).collect();
            scope.spawn(move || dispatch_lines(reader, lines.into_iter().map(Some).collect()));
            let end = |thread: thread::ScopedJoinHandle<'_, Result<R>>| {
                let panicked = |_| Err(anyhow!("a thread of the benchmark panicked"));
                thread.join().unwrap_or_else(panicked)
            };
            threads.into_iter().map(end).collect()
        });
        // All lanes have ended, so this is the last reference to the writer.
        if let Some(writer) = Arc::into_inner(writer) {
            self.writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
        }
        results
    }
}

/// Passes lines on to their lanes until all lanes have ended.
fn dispatch_lines(reader: &mut Box<dyn BufRead + Send>, mut lanes: Vec<Option<Sender<Vec<u8>>>>) {
    let mut line = Vec::new();
    while lanes.iter().any(Option::is_some) {
        line.clear();
        if !matches!(reader.read_until(b'\n', &mut line), Ok(1..)) {
            return;
        }
        let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number = std::str::from_utf8(&line[..digits]).ok();
        let lane = number.and_then(|number| lanes.get_mut(number.parse::<usize>().ok()?));
        match (lane, line.get(digits)) {
            // Ignore lines for a lane that has failed on this side.
            (Some(Some(lane)), Some(b' ')) => drop(lane.send(line[digits + 1..].to_vec())),
            (Some(lane), Some(b'.')) => *lane = None,
            // A line without a lane: the other end has failed as a whole.
            _ => {
                for lane in lanes.iter().flatten() {
                    let _ = lane.send(line.clone());
                }
                return;
            }
        }
    }
}

struct LaneReader {
    line_receiver: Receiver<Vec<u8>>,
    unread_bytes: Vec<u8>,
}

impl Read for LaneReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.unread_bytes.is_empty() {
            // A dropped sender means the end of the stream.
            self.unread_bytes = self.line_receiver.recv().unwrap_or_default();
        }
        let count = self.unread_bytes.len().min(into.len());
        into[..count].copy_from_slice(&self.unread_bytes[..count]);
        self.unread_bytes.drain(..count);
        Ok(count)
    }
}

/// Writer of a lane: each write is one line, and dropping the writer ends the lane.
struct LaneWriter {
    lane_index: usize,
    writer: SharedWriter,
}

impl LaneWriter {
    fn write(&self, separator: u8, line: &[u8]) -> io::Result<()> {
        let mut text = self.lane_index.to_string().into_bytes();
        text.push(separator);
        text.extend(line);
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        writer.write_all(&text)?;
        writer.flush()
    }
}

impl Write for LaneWriter {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        LaneWriter::write(self, b' ', line)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LaneWriter {
    fn drop(&mut self) {
        // Ignore the error: if the other end is gone, the lane has ended.
        let _ = LaneWriter::write(self, b'.', b"\n");
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    /// Runs both ends with three lanes each.
    fn run_both_ends<L: Send, R: Send>(
        left: impl Fn(usize, &mut WorkerLink) -> Result<L> + Sync,
        right: impl Fn(usize, &mut WorkerLink) -> Result<R> + Sync + Send,
    ) -> (Vec<Result<L>>, Vec<Result<R>>) {
        let (mut one, mut other) = WorkerLink::pair().unwrap();
        let done = thread::scope(|scope| {
            let there = scope.spawn(|| other.split_into_lanes(3, right));
            (one.split_into_lanes(3, left), there.join().unwrap())
        });
        // After the lanes, the link carries single values again.
        one.send(&7).unwrap();
        assert_eq!(other.recv::<u32>().unwrap(), 7);
        done
    }

    #[test]
    fn lanes_talk_to_their_own_numbers() {
        let talk = |number: usize, link: &mut WorkerLink| {
            for round in 0..50 {
                link.send(&(number, round))?;
                let receivers: (usize, usize) = link.recv()?;
                assert_eq!(receivers, (number, round));
            }
            Ok(number)
        };
        let (left, right) = run_both_ends(talk, talk);
        for results in [left, right] {
            let numbers: Vec<_> = results.into_iter().map(Result::unwrap).collect();
            assert_eq!(numbers, [0, 1, 2]);
        }
    }

    #[test]
    fn a_lane_that_fails_tells_its_other_end_why() {
        let fails = |number: usize, link: &mut WorkerLink| -> Result<()> {
            if number == 1 {
                bail!("no such\nqueue pair");
            }
            link.send(&"here")
        };
        let (left, right) = run_both_ends(fails, |_, link| link.recv::<String>());
        assert!(left[1].is_err() && left[0].is_ok());
        let error = right[1].as_ref().unwrap_err().to_string();
        assert!(error.contains("no such\nqueue pair"), "{error}");
        assert_eq!(right[2].as_ref().unwrap(), "here");
    }

    #[test]
    fn an_end_that_fails_as_a_whole_fails_all_lanes() {
        let (mut one, mut other) = WorkerLink::pair().unwrap();
        other.send_failure(&anyhow!("no device"));
        drop(other);
        for result in one.split_into_lanes(2, |_, link| link.recv::<u32>()) {
            let error = result.unwrap_err().to_string();
            assert!(error.contains("no device"), "{error}");
        }
    }
}
