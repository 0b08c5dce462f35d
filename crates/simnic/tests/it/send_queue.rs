//! Send queues: the fetch of their WQEs.

use verbs::Inline;

use crate::scene::{Setup, run, successes};

/// The fetch of a list of WQEs depends on the sizes of all of them, and not on which comes first.
#[test]
fn the_fetch_of_a_list_costs_the_same_in_each_order() {
    let fetched_bytes = [false, true].map(|long_first| {
        let [sender, _] = run(
            &Setup {
                qp: Some(|qp| qp.max_inline_data(400)),
                ..Setup::default()
            },
            move |side| {
                let later = [long_first, !long_first];
                let mut list = side.qp.postlist(2);
                for (number, long) in later.into_iter().enumerate() {
                    let payload: &[u8] = if long { &[7; 400] } else { &[] };
                    list.rdma_write(Inline(payload), side.remote)
                        .wr_id(number as u64)
                        .signaled();
                }
                side.qp.post_send(&mut list).expect("the queue has room");
                assert_eq!(side.completions(2).0, successes(2));
            },
            |_| {},
        );
        sender.dma_read_bytes
    });
    assert_eq!(fetched_bytes[0], fetched_bytes[1]);
    assert!(fetched_bytes[0] >= 448, "{fetched_bytes:?}");
}
