//! Many polling processes on two cores, compared with the same work when only two processes share
//! the cores at a time.
//!
//! A polling process never sleeps. While it polls in vain, the process that it waits for may get no
//! core. The ratio of the crowd's time to the time of its pairs in turn tells whether pollers yield
//! in time. These processes take no measures themselves: each polls its completion queue and never
//! yields.

mod config;
mod drive;
mod member;

pub use config::{CrowdConfig, CrowdPattern};
pub use drive::{Crowd, RunResult};
pub(crate) use member::{MemberJob, run_worker_side};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core_pinning::CorePair;
    use crate::open_nic::NicChoice;

    #[test]
    fn each_kind_does_its_work_in_a_crowd_and_in_turn() {
        let nic = NicChoice::first_device_of("softnic");
        for kind in CrowdPattern::ALL {
            let config = CrowdConfig::new(kind, 4, 50).unwrap();
            let mut crowd =
                Crowd::start_as_threads(CorePair::first_two().unwrap(), &nic, &config).unwrap();
            for result in [
                crowd.run_all_pairs_at_once().unwrap(),
                crowd.run_one_by_one().unwrap(),
            ] {
                assert!(result.elapsed_ns > 0);
                assert_eq!(
                    result.verified_messages,
                    config.total_messages(),
                    "{kind:?}"
                );
            }
        }
    }
}
