//! Programs that wait for an answer to each message, and programs that answer each message.

use super::{MessageBalance, OperationProfile, QueuePair, Thread, count_to_f64};
use crate::operation::Operation;

/// Largest share of messages without an answer in a program whose messages count as answered. Datagrams may be lost, and
/// the program may have ended before the last answers.
const MAX_UNANSWERED_SHARE: f64 = 0.01;

impl MessageBalance {
    /// Most messages that were sent without an answer at a time. `None` unless each sent message was answered.
    ///
    /// A thread that waits for answers never receives more than it has sent.
    fn max_unanswered(&self) -> Option<u64> {
        (self.is_even() && self.max_received_ahead == 0).then_some(self.max_sent_ahead.max(1))
    }

    /// Most received messages that were not answered at a time. `None` unless each received message was answered.
    fn max_to_answer(&self) -> Option<u64> {
        (self.is_even() && self.max_sent_ahead == 0).then_some(self.max_received_ahead.max(1))
    }

    fn is_even(&self) -> bool {
        is_about(self.received, self.sent)
    }
}

/// Returns true if two counts are positive and equal but for lost messages.
fn is_about(count: u64, other: u64) -> bool {
    let allowed = MAX_UNANSWERED_SHARE * count_to_f64(other);
    count > 0 && other > 0 && count_to_f64(count.abs_diff(other)) <= allowed
}

impl OperationProfile {
    /// Most messages for whose answers the program waited at a time. `None` unless the program got an answer to each
    /// of its messages.
    ///
    /// No more operations than these are on their way, whatever the number of posted ones without a completion.
    pub fn max_unanswered(&self) -> Option<f64> {
        self.sum_over_posting_threads(MessageBalance::max_unanswered)
    }

    /// Most received messages that waited for the program's answer at a time. `None` unless the program answered
    /// each message.
    pub fn max_to_answer(&self) -> Option<f64> {
        self.sum_over_posting_threads(MessageBalance::max_to_answer)
            .or(self.clients_unanswered)
    }

    /// Most work requests that can have been ready at the same time, as far as messages tell.
    pub fn max_ready(&self) -> Option<f64> {
        self.max_unanswered().or(self.max_to_answer())
    }

    /// The answer to the program's operations, or an operation like the own one if the program's peers wait for it.
    pub(super) fn answer(&self, own: &Operation) -> Option<Operation> {
        if self.max_unanswered().is_none() {
            return self.clients_unanswered.map(|_| *own);
        }
        let received = self.queue_pairs.iter().flat_map(|qp| &qp.received);
        let mut answer = received.max_by_key(|counted| counted.count)?.operation;
        // The receiver does not see how the message was posted: it is taken to be posted like the request.
        answer.inline = own.inline;
        Some(answer)
    }

    /// Tells each program that answers the messages of the others how many of these it had to answer at most.
    ///
    /// A program that takes requests from its memory receives no messages, so its own counts do not say. The counts
    /// of its clients do, if these clients got as many answers as the others posted operations.
    pub fn exchange_unanswered(all: &mut [Self]) {
        let (mut unanswered, mut answers, mut posted) = (0.0, 0u64, 0u64);
        for profile in &*all {
            if let Some(most) = profile.max_unanswered() {
                unanswered += most;
                let received = profile.queue_pairs.iter().map(QueuePair::received_messages);
                answers = received.fold(answers, u64::saturating_add);
            } else {
                posted = posted.saturating_add(profile.posted_operations());
            }
        }
        if is_about(posted, answers) {
            for profile in all {
                if profile.max_unanswered().is_none() {
                    profile.clients_unanswered = Some(unanswered);
                }
            }
        }
    }

    /// Sums a number over the threads that posted, as far as they posted at the same time.
    fn sum_over_posting_threads(&self, of: fn(&MessageBalance) -> Option<u64>) -> Option<f64> {
        let posting = self.threads.iter().filter(|thread| thread.posts > 0);
        let each = posting.map(|thread: &Thread| of(thread.messages.as_ref()?).map(count_to_f64));
        let each: Vec<f64> = each.collect::<Option<_>>()?;
        if each.is_empty() {
            return None;
        }
        let share = f64::from(self.max_concurrent_posters()) / count_to_f64(each.len() as u64);
        Some((each.iter().sum::<f64>() * share).max(1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::super::CountedOperations;
    use super::super::tests::sends;
    use super::*;
    use crate::bounds::Resource;
    use crate::profile::builtin_profile;

    /// A program that posts 1000 operations in one thread and receives as many messages.
    fn exchanges(max_sent_ahead: u64, max_received_ahead: u64) -> OperationProfile {
        let mut profile = sends(8, 1000, 1000);
        let qp = &mut profile.queue_pairs[0];
        qp.received = qp.sent.clone();
        qp.max_outstanding = 256;
        profile.threads = vec![Thread {
            posts: 1000,
            messages: Some(MessageBalance {
                sent: 1000,
                received: 1000,
                max_sent_ahead,
                max_received_ahead,
            }),
            ..Thread::default()
        }];
        profile
    }

    #[test]
    fn clients_and_servers_are_told_from_streams() {
        let of = |profile: OperationProfile| (profile.max_unanswered(), profile.max_to_answer());
        assert_eq!(of(exchanges(4, 0)), (Some(4.0), None));
        assert_eq!(of(exchanges(0, 7)), (None, Some(7.0)));
        // Both ends of an exchange send first at times.
        assert_eq!(of(exchanges(4, 1)), (None, None));
        let mut stream = exchanges(4, 0);
        stream.threads[0].messages.as_mut().expect("set").received = 900;
        assert_eq!(of(stream), (None, None));
        let mut old = exchanges(4, 0);
        old.threads[0].messages = None;
        assert_eq!(of(old), (None, None));
    }

    #[test]
    fn a_client_is_bound_by_the_way_there_and_back() {
        let cib = builtin_profile("cib").expect("built in");
        let rate = |profile: &OperationProfile| {
            let prediction = profile.predict(cib).expect("possible").expect("sent");
            (prediction.rate_mops, prediction.bottleneck)
        };
        let (one, bottleneck) = rate(&exchanges(1, 0));
        assert_eq!(bottleneck, Resource::RoundTrips);
        // `verbatim sequencer --nic cib --design rpc --clients 1 --window 1 --postlist 1 --cores 1`: 0.470 M/s.
        assert!((one - 0.47).abs() < 0.05, "{one}");
        let (four, _) = rate(&exchanges(4, 0));
        assert!((four / one - 4.0).abs() < 1e-9, "{four}");
        let mut unknown = exchanges(1, 0);
        unknown.threads[0].messages = None;
        assert!(rate(&unknown).0 > 8.0);
    }

    #[test]
    fn a_server_that_sees_no_messages_knows_from_its_clients() {
        let client = exchanges(4, 0);
        let mut server = sends(8, 1000, 1000);
        server.queue_pairs[0].max_outstanding = 256;
        server.queue_pairs[0].unpolled_postlist_runs = 2;
        let mut all = [client.clone(), server.clone()];
        OperationProfile::exchange_unanswered(&mut all);
        assert_eq!(all[1].max_to_answer(), Some(4.0));
        // Another program posted more than was answered.
        server.queue_pairs[0].sent.push(CountedOperations {
            count: 500,
            ..client.queue_pairs[0].sent[0].clone()
        });
        let mut all = [client, server];
        OperationProfile::exchange_unanswered(&mut all);
        assert_eq!(all[1].max_to_answer(), None);
    }
}
