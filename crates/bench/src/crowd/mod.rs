//! Many polling processes on two cores, beside the same work with the cores for two processes at a time.
//!
//! A process that polls does not sleep, and one that waits for it gets no core while it polls in vain. So what a crowd
//! takes, as a multiple of what its pairs take in turn, says whether pollers yield in time. The processes here do nothing
//! about it themselves: each polls its completion queue and never yields.

mod drive;
mod member;
mod scene;

pub use drive::{Crowd, Taken};
pub(crate) use member::{MemberOrder, work};
pub use scene::{Kind, Scene};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nic::NicChoice;
    use crate::pin::Cores;

    #[test]
    fn each_kind_does_its_work_in_a_crowd_and_in_turn() {
        let nic = NicChoice::first_of("softnic");
        for kind in Kind::ALL {
            let scene = Scene::new(kind, 4, 50).unwrap();
            let mut crowd = Crowd::of_threads(Cores::first_two().unwrap(), &nic, &scene).unwrap();
            for taken in [crowd.together().unwrap(), crowd.in_turn().unwrap()] {
                assert!(taken.elapsed_ns > 0);
                assert_eq!(taken.verified, scene.messages(), "{kind:?}");
            }
        }
    }
}
