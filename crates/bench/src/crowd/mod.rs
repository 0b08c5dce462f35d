//! Many polling processes on two cores, compared with the same work when only two processes share
//! the cores at a time.
//!
//! A polling process never sleeps. While it polls in vain, the process that it waits for may get no
//! core. The ratio of the crowd's time to the time of its pairs in turn tells whether pollers yield
//! in time. These processes take no measures themselves: each polls its completion queue and never
//! yields.

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
