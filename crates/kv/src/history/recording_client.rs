//! A client whose history is checked for linearizability: all operations on few keys, with a full window.

use std::io;

use lincheck::{OperationOutcome, RegisterAction, WriteCondition};

use super::HistoryRecorder;
use crate::ConnectError;
use crate::client::{Answer, ClientError, Completion, PipelinedClient};
use crate::load::{Random, verified_stamp, write_key_bytes, write_value_bytes};
use crate::store;
use crate::wire::Op;

/// The parameters of a recording client.
#[derive(Debug, Clone, Copy)]
pub struct RecordingParameters {
    /// Number of keys: few, so that clients compete.
    pub keys: u64,
    /// Bytes of a value, 16 or more.
    pub value_bytes: usize,
    /// The seed of the random choices.
    pub seed: u64,
}

/// Sends requests until `stop` returns true and everything is answered, and records requests and answers.
///
/// Half of the requests are GETs. A sixth are PUTs, and a sixth compare-and-sets of the version that this client saw
/// last. The others are PUTs of keys that must be absent or present, and DELETEs with and without a version.
///
/// # Errors
/// If the server cannot be reached any more, or was replaced by another one; or if the file cannot be written.
pub fn run_recording_client(
    pipeline: &mut PipelinedClient,
    plan: &RecordingParameters,
    recorder: &mut HistoryRecorder,
    mut stop: impl FnMut() -> bool,
) -> Result<(), ClientError> {
    let mut requester = RequestChooserAndRecorder {
        plan,
        random: Random::new(plan.seed),
        highest_versions: vec![0; usize::try_from(plan.keys).unwrap_or(1).max(1)],
        last_value_number: 0,
        key_buffer: [0; 16],
        value_buffer: vec![0; plan.value_bytes.max(16)],
        outstanding_requests: Vec::new(),
    };
    let (server, window) = (pipeline.server_incarnation(), pipeline.config().window);
    let mut chosen = None;
    let mut stopping = false;
    loop {
        stopping |= stop();
        while pipeline.outstanding() < window && (chosen.is_some() || !stopping) {
            let (key, action, number) = match chosen.take() {
                Some(chosen) => chosen,
                None => requester
                    .choose_request(recorder)
                    .map_err(file_write_error)?,
            };
            let token = requester.allocate_token(key, action, number);
            if !requester.submit(pipeline, key, action, token)? {
                chosen = Some((key, action, number));
                break;
            }
        }
        let mut written = Ok(());
        pipeline.refresh_clock();
        pipeline.poll(|done| {
            let recorded = requester.record_answer(&done, recorder);
            if written.is_ok() {
                written = recorded;
            }
        })?;
        written.map_err(file_write_error)?;
        if pipeline.server_incarnation() != server {
            return Err(ClientError::permanent_refusal(
                "another server has come to its address, and knows nothing of this history",
            ));
        }
        if stopping && chosen.is_none() && pipeline.outstanding() == 0 {
            return Ok(());
        }
    }
}

fn file_write_error(e: io::Error) -> ClientError {
    ConnectError::Config(format!("the history cannot be written: {e}")).into()
}

struct RequestChooserAndRecorder<'p> {
    plan: &'p RecordingParameters,
    random: Random,
    /// The highest version of each key that was seen.
    highest_versions: Vec<u64>,
    last_value_number: u64,
    key_buffer: [u8; 16],
    value_buffer: Vec<u8>,
    /// Outstanding requests by their tokens: history number, key and action.
    outstanding_requests: Vec<Option<(u64, u64, RegisterAction)>>,
}

impl RequestChooserAndRecorder<'_> {
    /// Chooses a request and records its call. Returns its key, its action and its history number.
    fn choose_request(
        &mut self,
        recorder: &mut HistoryRecorder,
    ) -> io::Result<(u64, RegisterAction, u64)> {
        let key = self.random.next_below(self.plan.keys.max(1));
        let version = self.highest_versions[usize::try_from(key).unwrap_or(0)].max(1);
        self.last_value_number += 1;
        // No two values of a history are equal, so each identifies its write.
        let value = (recorder.client_number() + 1) << 32 | self.last_value_number & 0xffff_ffff;
        let write = |condition| RegisterAction::Write { value, condition };
        let action = match self.random.next_below(24) {
            0..12 => RegisterAction::Read,
            12..16 => write(WriteCondition::Always),
            16..20 => write(WriteCondition::Version(version)),
            20 => write(WriteCondition::Absent),
            21 => write(WriteCondition::Present),
            22 => RegisterAction::Remove { version: None },
            _ => RegisterAction::Remove {
                version: Some(version),
            },
        };
        let number = recorder.record_call(key, action)?;
        Ok((key, action, number))
    }

    /// Returns a token for an outstanding request.
    fn allocate_token(&mut self, key: u64, action: RegisterAction, number: u64) -> usize {
        let free = self.outstanding_requests.iter().position(Option::is_none);
        let token = free.unwrap_or_else(|| {
            self.outstanding_requests.push(None);
            self.outstanding_requests.len() - 1
        });
        self.outstanding_requests[token] = Some((number, key, action));
        token
    }

    fn submit(
        &mut self,
        pipeline: &mut PipelinedClient,
        number: u64,
        action: RegisterAction,
        token: usize,
    ) -> Result<bool, ClientError> {
        write_key_bytes(number, &mut self.key_buffer);
        let key = &self.key_buffer;
        let op = match action {
            RegisterAction::Read | RegisterAction::Scan => Op::Get { key },
            RegisterAction::Write { value, condition } => {
                write_value_bytes(number, value, &mut self.value_buffer);
                Op::Put {
                    key,
                    value: &self.value_buffer,
                    condition: match condition {
                        WriteCondition::Always => store::SetCondition::Always,
                        WriteCondition::Absent => store::SetCondition::Absent,
                        WriteCondition::Present => store::SetCondition::Present,
                        WriteCondition::Version(version) => store::SetCondition::Version(version),
                    },
                    ttl_ms: 0,
                }
            }
            RegisterAction::Remove { version } => Op::Delete { key, version },
        };
        let taken = pipeline.submit(&op, token as u64)?;
        if !taken {
            self.outstanding_requests[token] = None;
        }
        Ok(taken)
    }

    /// Records an answer.
    fn record_answer(
        &mut self,
        done: &Completion<'_>,
        recorder: &mut HistoryRecorder,
    ) -> io::Result<()> {
        let place = usize::try_from(done.token).ok();
        let place = place.and_then(|token| self.outstanding_requests.get_mut(token));
        let Some((number, key, action)) = place.and_then(Option::take) else {
            return Err(io::Error::other("an answer came to no request"));
        };
        let outcome = match done.answer {
            Answer::Value { value, version } => {
                let stamp =
                    verified_stamp(key, value).filter(|_| value.len() == self.value_buffer.len());
                match stamp {
                    Some(value) => OperationOutcome::FoundVersioned { value, version },
                    None => return recorder.record_wrong_value(number, version),
                }
            }
            Answer::Changed { version } => OperationOutcome::Done { version },
            Answer::NotFound => OperationOutcome::Absent,
            Answer::ConditionNotMet { version } => OperationOutcome::Refused { version },
            Answer::StoreFull | Answer::TooLong => return recorder.record_no_room(number),
            // The outcome is unknown, so nothing is recorded.
            Answer::NoAnswerInTime => return Ok(()),
        };
        let seen = &mut self.highest_versions[usize::try_from(key).unwrap_or(0)];
        match (outcome, action) {
            (OperationOutcome::Done { .. }, RegisterAction::Remove { .. }) => {}
            (
                OperationOutcome::FoundVersioned { version, .. }
                | OperationOutcome::Done { version }
                | OperationOutcome::Refused { version },
                _,
            ) => *seen = version.max(*seen),
            (
                OperationOutcome::Absent
                | OperationOutcome::FoundUnversioned { .. }
                | OperationOutcome::UnversionedChangeAnswer { .. },
                _,
            ) => {}
        }
        recorder.record_answer(number, outcome)
    }
}
