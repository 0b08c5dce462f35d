//! Requests and responses at several depths, as an NVMe over Fabrics target and its initiator
//! exchange them.
//!
//! The client SENDs a request of 64 bytes that names a slot of its memory. The server takes the
//! request from a shared receive queue and WRITEs the data into the slot, or READs them from it.
//! Then it SENDs a response. The client keeps `depth` requests in flight on each queue pair. Each
//! side polls one completion queue and posts once per poll.

mod client;
mod config;
mod payload_marks;
mod server;

pub(crate) use client::exchange_as_client;
pub use client::{ExchangeRate, run};
pub(crate) use config::DepthJob;
pub use config::{DataMemory, ExchangeConfig, TransferVerb};
pub(crate) use server::{run_worker_side, serve_worker_side};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::Job;
    use crate::link::WorkerLink;
    use crate::open_nic::{NicChoice, OpenNic};

    fn tiny(config: ExchangeConfig) -> ExchangeRate {
        let nic = NicChoice::first_device_of("softnic");
        let (mut left, mut right) = WorkerLink::pair().unwrap();
        std::thread::scope(|scope| {
            let worker = scope.spawn(move || match right.recv()? {
                Job::Depth(order) => run_worker_side(&mut right, &order),
                job => anyhow::bail!("{job:?} is no exchange of requests"),
            });
            let rate = exchange_as_client(&mut left, &nic, &OpenNic::open(&nic).unwrap(), &config);
            drop(left);
            worker.join().unwrap().unwrap();
            rate.unwrap()
        })
    }

    #[test]
    fn both_ways_at_several_depths_in_each_kind_of_memory() {
        for verb in [TransferVerb::Write, TransferVerb::Read] {
            for memory in [DataMemory::Shared, DataMemory::Heap, DataMemory::Large] {
                for (depth, queue_pairs) in [(1, 1), (16, 1), (3, 2)] {
                    let config = ExchangeConfig {
                        verb,
                        memory,
                        depth,
                        queue_pairs,
                        payload_bytes: 4096,
                        duration_ms: 5,
                    };
                    let rate = tiny(config);
                    assert!(
                        rate.requests_answered > 0 && rate.requests_per_s > 0.0,
                        "{config:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn payloads_of_few_words() {
        for payload_bytes in [8, 16, 24, 100] {
            let rate = tiny(ExchangeConfig {
                verb: TransferVerb::Write,
                memory: DataMemory::Shared,
                depth: 2,
                queue_pairs: 1,
                payload_bytes,
                duration_ms: 2,
            });
            assert!(rate.requests_answered > 0);
        }
    }
}
