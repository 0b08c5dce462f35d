//! Collectives over the software NIC, and over simulated ones: the same code, the same results.

use std::time::Duration;

use collective::{Config, DataType, Reduction, Ring, connect_local_ring};
use verbs::{Access, MemoryRegion, ProtectionDomain, Provider};

/// The work of every rank in a test.
type Work = fn(&mut Ring, &ProtectionDomain);

/// Runs it on threads, over the software NIC.
fn on_threads(ranks: usize, lanes: usize, slice_bytes: usize, work: Work) {
    let context = Provider::softnic().device(None).expect("there is one");
    let context = context.open().expect("opens");
    let domains: Vec<_> = (0..ranks)
        .map(|_| context.alloc_pd().expect("a domain"))
        .collect();
    let config = Config {
        lane_count: lanes,
        ..Config::default()
    };
    let rings = connect_local_ring(&domains, &config, slice_bytes).expect("a ring");
    let threads: Vec<_> = rings
        .into_iter()
        .zip(domains)
        .map(|(ring, pd)| {
            std::thread::spawn(move || work(&mut ring.with_timeout(Duration::from_secs(60)), &pd))
        })
        .collect();
    for thread in threads {
        thread.join().expect("the rank is right");
    }
}

/// An element of a rank: small, so that products and sums of floats are exact.
fn element(rank: usize, at: usize) -> i64 {
    i64::try_from((rank * 3 + at) % 4).expect("small") + 1
}

fn bytes_of(value: i64, data: DataType) -> Vec<u8> {
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        reason = "small"
    )]
    match data {
        DataType::F32 => (value as f32).to_ne_bytes().to_vec(),
        DataType::F64 => (value as f64).to_ne_bytes().to_vec(),
        DataType::F16 => half::f16::from_f32(value as f32).to_ne_bytes().to_vec(),
        DataType::Bf16 => half::bf16::from_f32(value as f32).to_ne_bytes().to_vec(),
        DataType::I32 => (value as i32).to_ne_bytes().to_vec(),
        DataType::I64 => value.to_ne_bytes().to_vec(),
        // Sums and products wrap around.
        DataType::U8 => value.to_le_bytes()[..1].to_vec(),
    }
}

fn fill(buffer: &MemoryRegion, count: usize, data: DataType, value: impl Fn(usize) -> i64) {
    let bytes: Vec<u8> = (0..count)
        .flat_map(|at| bytes_of(value(at), data))
        .collect();
    buffer.write_at(0, &bytes).expect("inside");
}

fn check(
    buffer: &MemoryRegion,
    elements: std::ops::Range<usize>,
    data: DataType,
    value: impl Fn(usize) -> i64,
) {
    for at in elements {
        let mut bytes = vec![0; data.element_bytes()];
        buffer
            .read_at(at * data.element_bytes(), &mut bytes)
            .expect("inside");
        assert_eq!(bytes, bytes_of(value(at), data), "element {at} of {data:?}");
    }
}

fn reduced(ranks: usize, at: usize, op: Reduction) -> i64 {
    let all = (0..ranks).map(|rank| element(rank, at));
    match op {
        Reduction::Sum => all.sum(),
        Reduction::Prod => all.product(),
        Reduction::Min => all.min().expect("ranks"),
        Reduction::Max => all.max().expect("ranks"),
    }
}

/// Every collective, every type and operation, with counts that do and do not divide.
fn everything(ring: &mut Ring, pd: &ProtectionDomain) {
    let (rank, ranks) = (ring.rank(), ring.rank_count());
    let buffer = pd.alloc(8 * 1000, Access::ALL).expect("memory");
    for count in [0, 1, ranks, 1000] {
        for (_, data) in DataType::ALL_WITH_NAMES {
            for (_, op) in Reduction::ALL_WITH_NAMES {
                fill(&buffer, count, data, |at| element(rank, at));
                ring.all_reduce(&buffer, count, data, op)
                    .expect("all-reduce");
                check(&buffer, 0..count, data, |at| reduced(ranks, at, op));
                fill(&buffer, count, data, |at| element(rank, at));
                ring.reduce_scatter(&buffer, count, data, op)
                    .expect("reduce-scatter");
                let own = ring.element_range(count, rank);
                check(&buffer, own, data, |at| reduced(ranks, at, op));
            }
            let own = ring.element_range(count, rank);
            let owned = |at| {
                if own.contains(&at) {
                    element(rank, at)
                } else {
                    0
                }
            };
            fill(&buffer, count, data, owned);
            ring.all_gather(&buffer, count, data).expect("all-gather");
            let owner = |at| (0..ranks).find(|rank| ring.element_range(count, *rank).contains(&at));
            check(&buffer, 0..count, data, |at| {
                element(owner(at).expect("one"), at)
            });
        }
        for root in 0..ranks {
            fill(&buffer, count, DataType::I64, |at| element(rank, at));
            ring.broadcast(&buffer, 8 * count, root).expect("broadcast");
            check(&buffer, 0..count, DataType::I64, |at| element(root, at));
        }
        let other = pd.alloc(8 * 1000, Access::ALL).expect("memory");
        fill(&buffer, count, DataType::I64, |at| element(rank, at));
        ring.send_to_next_and_recv_from_previous((&buffer, 8 * count), (&other, 8 * count))
            .expect("send and receive");
        check(&other, 0..count, DataType::I64, |at| {
            element((rank + ranks - 1) % ranks, at)
        });
    }
}

#[test]
fn all_collectives_are_right_on_the_software_nic() {
    for (ranks, lanes, slice) in [(1, 1, 64), (2, 1, 64), (3, 2, 512), (5, 4, 8192)] {
        on_threads(ranks, lanes, slice, everything);
    }
}

#[test]
fn all_collectives_are_right_on_simulated_nics() {
    for (name, ranks, lanes) in [("cib", 4, 1), ("cx3", 3, 2)] {
        let profile = nicmodel::profile::builtin_profile(name).expect("there is one");
        let cluster = simnic::Cluster::new(profile, ranks, 1).expect("a cluster");
        let domains: Vec<_> = Provider::simnic()
            .devices()
            .expect("devices")
            .iter()
            .take(ranks)
            .map(|device| device.open().expect("opens").alloc_pd().expect("a domain"))
            .collect();
        let config = Config {
            lane_count: lanes,
            ..Config::default()
        };
        let rings = connect_local_ring(&domains, &config, 1024).expect("a ring");
        for (rank, (ring, pd)) in rings.into_iter().zip(domains).enumerate() {
            // A simulated thread begins with what fits onto a page of its stack.
            let mut ring = Box::new(ring);
            let work = move || everything(&mut ring, &pd);
            cluster.spawn(cluster.host_of_machine(rank), format!("rank {rank}"), work);
        }
        cluster
            .run_until_threads_end()
            .expect("all ranks come to their end");
        assert!(cluster.now() > Duration::from_micros(10));
    }
}

#[test]
fn ranks_that_disagree_get_an_error_and_do_not_hang() {
    on_threads(2, 1, 64, |ring, pd| {
        let buffer = pd.alloc(64, Access::ALL).expect("memory");
        let count = 2 + 2 * ring.rank();
        let reduced = ring.all_reduce(&buffer, count, DataType::I32, Reduction::Sum);
        assert!(reduced.is_err() || ring.rank() == 0, "{reduced:?}");
        let too_many = ring.all_reduce(&buffer, 17, DataType::I32, Reduction::Sum);
        assert!(
            too_many
                .expect_err("17 of 16")
                .to_string()
                .contains("17 elements")
        );
    });
}
