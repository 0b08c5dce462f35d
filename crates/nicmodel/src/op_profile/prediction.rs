//! The load of a program on its machine and on its peers, and the rate that follows for a NIC.

use super::{OperationProfile, Prediction, count_to_f64};
use crate::bounds::{Bounds, Mix, MixOperation, Resource, Role};
use crate::footprint::{Footprint, LinkTransactions};
use crate::operation::{OperationError, PostMethod};
use crate::profile::Profile;

/// Assumed length of the postlists in which peers answer.
const ASSUMED_PEER_POSTLIST_LEN: f64 = 16.0;

impl OperationProfile {
    /// Returns the program as far as the NIC can execute it, and notes on the differences. Inline payload that is too
    /// long is fetched by DMA instead. Other operations that the NIC cannot execute are left out.
    pub fn restricted_to_executable(&self, profile: &Profile) -> (Self, Vec<String>) {
        let mut fitted = self.clone();
        let mut notes = Vec::new();
        for qp in &mut fitted.queue_pairs {
            for counts in [&mut qp.sent, &mut qp.received] {
                counts.retain_mut(|counted| {
                    let error = match counted.operation.check_executable(profile) {
                        Ok(()) => return true,
                        Err(error) => error,
                    };
                    if let OperationError::InlineTooLong { .. } = error {
                        counted.operation.inline = false;
                        if counted.operation.check_executable(profile).is_ok() {
                            notes.push(format!("{error}: taken as fetched by DMA"));
                            return true;
                        }
                    }
                    notes.push(format!(
                        "{} operations are left out: {error}",
                        counted.count
                    ));
                    false
                });
            }
            qp.postlists = qp.postlists.min(qp.posted_operations());
            qp.unpolled_postlist_runs = qp.unpolled_postlist_runs.min(qp.postlists);
            qp.adjacent_reads = qp.adjacent_reads.min(qp.posted_operations());
            if qp.atomics_of_known_address() > qp.posted_operations() {
                qp.atomics_by_low_address_bits.clear();
            }
        }
        notes.sort();
        notes.dedup();
        (fitted, notes)
    }

    /// Returns the transactions on the PCIe link of the program's machine for one operation of [`Self::own_machine_mix`].
    ///
    /// # Errors
    /// Returned if the NIC cannot execute one of the operations.
    pub fn link_transactions_per_operation(
        &self,
        profile: &Profile,
    ) -> Result<LinkTransactions, OperationError> {
        let mut all = LinkTransactions::default();
        for load in self
            .own_machine_mix()
            .iter()
            .flat_map(|mix| &mix.operations)
        {
            let one = Footprint::of_one(
                profile,
                &load.operation,
                load.post_method,
                load.mean_postlist_len,
            )?;
            let side = match load.role {
                Role::Requester => &one.requester,
                Role::Responder => &one.responder,
            };
            all.add_multiple(side, load.operations_per_request);
        }
        Ok(all)
    }

    /// The work of the program's machine for one posted operation. If the program posts nothing, the work for one
    /// received message.
    ///
    /// Work apart from verbs is not included. `None` if nothing was posted or received.
    pub fn own_machine_mix(&self) -> Option<Mix> {
        let total = self.posted_or_received_operations();
        if total == 0 {
            return None;
        }
        let queue_pairs = self.effective_queue_pairs();
        let receiving = self.effective_receiving_qps();
        let lock_slots = self.effective_atomic_locks();
        let mut loads = Vec::new();
        for qp in &self.queue_pairs {
            for lists in qp.postlists_by_method() {
                for counted in qp.sent.iter().filter(|counted| counted.count > 0) {
                    loads.push(MixOperation {
                        post_method: PostMethod::of_postlist(lists.mean_len),
                        mean_postlist_len: lists.mean_len,
                        queue_pairs: Some(queue_pairs),
                        lock_slots,
                        answer: self.answer(&counted.operation),
                        operations_per_request: lists.work_request_share
                            * count_to_f64(counted.count)
                            / count_to_f64(total),
                        ..MixOperation::new(counted.operation, Role::Requester)
                    });
                }
            }
            for counted in qp.received.iter().filter(|counted| counted.count > 0) {
                loads.push(MixOperation {
                    queue_pairs: Some(receiving),
                    operations_per_request: count_to_f64(counted.count) / count_to_f64(total),
                    ..MixOperation::new(counted.operation, Role::Responder)
                });
            }
        }
        Some(Mix {
            max_outstanding: self.max_outstanding(),
            max_unanswered: self.max_unanswered().or(self.clients_unanswered),
            ..Mix::new(loads).on_cores(self.max_concurrent_posters())
        })
    }

    /// The work of one peer for one operation of the program.
    fn mix_of_one_peer(&self) -> Option<Mix> {
        let peers = f64::from(self.peer_count.max(1));
        let mut mix = self.own_machine_mix()?;
        for load in &mut mix.operations {
            load.role = match load.role {
                Role::Requester => Role::Responder,
                Role::Responder => Role::Requester,
            };
            load.operations_per_request /= peers;
            load.queue_pairs = None;
            // The peer's postlists are not known: they are assumed to be long.
            if load.role == Role::Requester {
                *load = load.clone().in_postlists(ASSUMED_PEER_POSTLIST_LEN);
            }
        }
        // The peer's cores and their work are unknown unless a proposed design defines them.
        let work = self.peers_work;
        Some(Mix {
            cores: work.map(|work| work.cores),
            app_ns_per_request: work
                .and_then(|work| work.app_ns_per_operation)
                .unwrap_or(0.0)
                / peers,
            serialized_app_ns_per_request: work.map_or(0.0, |work| work.serialized_ns) / peers,
            max_outstanding: None,
            max_unanswered: None,
            ..mix
        })
    }

    /// Predicts the program's rate on a NIC. `None` if nothing was posted or received.
    ///
    /// # Errors
    /// Returned if the NIC cannot execute one of the operations.
    pub fn predict(&self, profile: &Profile) -> Result<Option<Prediction>, OperationError> {
        let (Some(own), Some(peers)) = (self.own_machine_mix(), self.mix_of_one_peer()) else {
            return Ok(None);
        };
        let requester = Bounds::of(profile, &own)?;
        let mut responder = Bounds::of(profile, &peers)?;
        let work_is_unknown = self
            .peers_work
            .is_some_and(|work| work.app_ns_per_operation.is_none());
        if work_is_unknown && !responder.unknown_resources.contains(&Resource::Cpu) {
            responder.unknown_resources.push(Resource::Cpu);
        }
        let sides = [(Role::Requester, &requester), (Role::Responder, &responder)];
        let rates = sides.into_iter().filter_map(|(role, bounds)| {
            Some((role, bounds.predicted_mops?, bounds.bottleneck()?))
        });
        let slower = rates.min_by(|a, b| a.1.total_cmp(&b.1));
        Ok(slower.map(|(slower, rate_mops, bottleneck)| Prediction {
            rate_mops,
            slower_role: slower,
            bottleneck,
            own_machine_bounds: requester,
            peer_bounds: responder,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::sends;
    use super::super::{
        AtomicSlotCount, CountedOperations, PostlistsByLength, PostlistsByMethod, QueuePair,
        Thread, VERSION,
    };
    use super::*;
    use crate::operation::Operation;
    use crate::profile::builtin_profile;
    use crate::verb::{Transport, Verb};

    #[test]
    fn a_profile_is_predicted_like_the_mix_that_it_is() {
        let cib = builtin_profile("cib").expect("built in");
        let prediction = sends(60, 1600, 100)
            .predict(cib)
            .expect("possible")
            .expect("sent");
        assert_eq!(prediction.bottleneck, Resource::QueuePairUnits);
        assert_eq!(prediction.slower_role, Role::Requester);
        assert!(
            (prediction.rate_mops - 8.26).abs() < 0.01,
            "{}",
            prediction.rate_mops
        );
        let nothing = OperationProfile::default();
        assert_eq!(nothing.predict(cib), Ok(None));
    }

    /// Single work requests and postlists have different methods: a few postlists among many single work requests
    /// change the rate little.
    #[test]
    fn lengths_of_lists_are_not_averaged() {
        let cib = builtin_profile("cib").expect("built in");
        let rate = |profile: OperationProfile| {
            let prediction = profile.predict(cib).expect("possible").expect("sent");
            prediction.rate_mops
        };
        let singles = rate(sends(60, 100_000, 100_000));
        let mut one_list = sends(60, 100_000, 99_999);
        let lengths = [(1, 99_998), (2, 1)];
        one_list.queue_pairs[0].postlist_lengths = lengths
            .map(|(at_most, count)| PostlistsByLength {
                max_postlist_len: at_most,
                count,
            })
            .to_vec();
        assert!((rate(one_list) / singles - 1.0).abs() < 0.001);
        // Half of the work requests in postlists of 16.
        let mut mixed = sends(60, 3200, 1700);
        let lengths = [(1, 1600), (16, 100)];
        mixed.queue_pairs[0].postlist_lengths = lengths
            .map(|(at_most, count)| PostlistsByLength {
                max_postlist_len: at_most,
                count,
            })
            .to_vec();
        let lists: Vec<_> = mixed.queue_pairs[0].postlists_by_method();
        assert_eq!(
            lists,
            [(1.0, 0.5), (16.0, 0.5)].map(|(postlist, share)| PostlistsByMethod {
                mean_len: postlist,
                work_request_share: share,
            })
        );
        // After a change of the postlist count, the recorded lengths do not apply.
        mixed.queue_pairs[0].postlists = 200;
        assert_eq!(mixed.queue_pairs[0].postlists_by_method().len(), 1);
    }

    /// Returns the bound of the locks of a program whose queue pairs do atomics on these slots, 100 on each.
    fn lock_bound(slots_of_queue_pairs: &[&[u32]]) -> f64 {
        let queue_pairs = slots_of_queue_pairs.iter().zip(1..).map(|(slots, qpn)| {
            let count = 100 * slots.len() as u64;
            let operation = Operation::new(Verb::AtomicFetchAndAdd, Transport::Rc, 8);
            QueuePair {
                sent: vec![CountedOperations { operation, count }],
                postlists: count,
                unpolled_postlist_runs: count,
                atomics_by_low_address_bits: slots
                    .iter()
                    .map(|&slot| AtomicSlotCount {
                        low_address_bits: slot,
                        count: 100,
                    })
                    .collect(),
                ..QueuePair::new(qpn, Transport::Rc)
            }
        });
        let profile = OperationProfile {
            version: VERSION,
            queue_pairs: queue_pairs.collect(),
            ..OperationProfile::default()
        };
        let cib = builtin_profile("cib").expect("built in");
        let predicted = profile.predict(cib).expect("possible").expect("sent");
        let bound = predicted.peer_bounds.rate_mops(Resource::AtomicLocks);
        bound.expect("atomics need locks")
    }

    #[test]
    fn atomics_of_several_queue_pairs_share_the_locks() {
        let one = lock_bound(&[&[0, 8, 16, 24, 32, 40, 48, 56]]);
        let each_its_own = lock_bound(&[&[0], &[8], &[16], &[24], &[32], &[40], &[48], &[56]]);
        assert!((each_its_own / one - 1.0).abs() < 1e-9);
        let hot = lock_bound(&[&[0], &[0], &[0], &[0], &[0], &[0], &[0], &[0]]);
        assert!((one / hot - 8.0).abs() < 1e-9, "{one} {hot}");
    }

    #[test]
    fn threads_that_only_receive_work_in_parallel() {
        let mut profile = sends(32, 1600, 100);
        let qp = &mut profile.queue_pairs[0];
        qp.received = std::mem::take(&mut qp.sent);
        (qp.postlists, qp.unpolled_postlist_runs) = (0, 0);
        profile.queue_pairs = vec![qp.clone(); 4];
        profile.threads = (0..4)
            .map(|id| Thread {
                id,
                recv_posts: 100,
                completions: 1600,
                ..Thread::default()
            })
            .collect();
        assert_eq!(profile.max_concurrent_posters(), 4);
        let cib = builtin_profile("cib").expect("built in");
        let predicted = profile.predict(cib).expect("possible").expect("received");
        assert_eq!(predicted.bottleneck, Resource::NicInbound);
    }
}
