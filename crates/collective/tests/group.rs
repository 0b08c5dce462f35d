//! Collectives of a group on memory that is not registered, and messages between its ranks.

use std::net::Ipv4Addr;
use std::sync::{Barrier, mpsc};
use std::time::{Duration, Instant};

use collective::{Config, DataType, Error, Group, PreparedGroup, RankMessenger, Reduction};
use verbs::Provider;

const WAIT: Duration = Duration::from_secs(60);

/// Runs it as every rank of a group, in threads that share nothing but addresses.
fn on_ranks<R: Send + 'static>(
    ranks: usize,
    timeout: Duration,
    work: fn(Group, RankMessenger) -> R,
) -> Vec<R> {
    let device = Provider::softnic().device(None).expect("there is one");
    let prepared: Vec<_> = (0..ranks)
        .map(|rank| {
            let pd = device.open().expect("opens").alloc_pd().expect("a domain");
            let here = Ipv4Addr::LOCALHOST.into();
            PreparedGroup::new(&pd, &Config::default(), (rank, ranks), here).expect("it listens")
        })
        .collect();
    let addresses: Vec<_> = prepared
        .iter()
        .map(PreparedGroup::listener_handles_as_bytes)
        .collect();
    let threads: Vec<_> = prepared
        .into_iter()
        .map(|prepared| {
            let addresses = addresses.clone();
            std::thread::spawn(move || {
                let (group, messages) = prepared.connect(&addresses, timeout).expect("all there");
                work(group, messages)
            })
        })
        .collect();
    let results = threads.into_iter().map(|t| t.join().expect("no panic"));
    results.collect()
}

fn numbers(count: usize, of: impl Fn(usize) -> i64) -> Vec<u8> {
    (0..count).flat_map(|at| of(at).to_ne_bytes()).collect()
}

/// The element of a rank: small, and different in neighbours.
fn element(rank: usize, at: usize) -> i64 {
    i64::try_from((7 * rank + at) % 1000).expect("small")
}

/// Sizes on both sides of the change of algorithm, and beyond the staging memory.
const COUNTS: [usize; 5] = [0, 1, 4096, 5001, 300_001];

fn every_collective(mut group: Group, _messages: RankMessenger) {
    let (rank, ranks) = (group.rank(), group.rank_count());
    let no_root = group.broadcast(&mut [0], ranks);
    assert!(matches!(no_root, Err(Error::InvalidRange(_))));
    for count in COUNTS {
        let mut data = numbers(count, |at| element(rank, at));
        let sum = |at| (0..ranks).map(|rank| element(rank, at)).sum();
        group
            .all_reduce(&mut data, DataType::I64, Reduction::Sum)
            .expect("all-reduce");
        assert!(data == numbers(count, sum), "all-reduce of {count}");

        for root in 0..ranks {
            let mut data = numbers(count, |at| element(rank, at));
            group.broadcast(&mut data, root).expect("broadcast");
            assert!(data == numbers(count, |at| element(root, at)), "broadcast");
        }

        let mut outputs = vec![vec![0; 8 * count]; ranks];
        let mut parts: Vec<_> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        let input = numbers(count, |at| element(rank, at));
        group.all_gather(&input, &mut parts).expect("all-gather");
        for (from, output) in outputs.iter().enumerate() {
            assert!(
                *output == numbers(count, |at| element(from, at)),
                "all-gather"
            );
        }

        let inputs: Vec<_> = (0..ranks)
            .map(|to| numbers(count, |at| element(rank + 3 * to, at)))
            .collect();
        let parts: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let mut output = vec![0; 8 * count];
        group
            .reduce_scatter(&parts, &mut output, DataType::I64, Reduction::Max)
            .expect("reduce-scatter");
        let most = |at| (0..ranks).map(|from| element(from + 3 * rank, at)).max();
        assert!(
            output == numbers(count, |at| most(at).expect("ranks")),
            "reduce-scatter"
        );

        // Each pair of ranks has its own size.
        let size = |from: usize, to: usize| (from + 2 * to) * count;
        let inputs: Vec<_> = (0..ranks)
            .map(|to| numbers(size(rank, to), |at| element(rank + to, at)))
            .collect();
        let parts: Vec<_> = inputs.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<_> = (0..ranks)
            .map(|from| vec![0; 8 * size(from, rank)])
            .collect();
        let mut into: Vec<_> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
        group.all_to_all(&parts, &mut into).expect("all-to-all");
        for (from, output) in outputs.iter().enumerate() {
            let expected = numbers(size(from, rank), |at| element(from + rank, at));
            assert!(*output == expected, "all-to-all");
        }
        group.barrier().expect("barrier");
    }
}

#[test]
fn all_collectives_are_right_with_one_to_four_ranks() {
    for ranks in 1..=4 {
        on_ranks(ranks, WAIT, every_collective);
    }
}

#[test]
fn a_long_all_reduce_is_right_with_two_to_four_ranks() {
    // Many more pieces than slots.
    const COUNT: usize = 800_003;
    for ranks in 2..=4 {
        on_ranks(ranks, WAIT, |mut group, _| {
            let (rank, ranks) = (group.rank(), group.rank_count());
            let mut data = numbers(COUNT, |at| element(rank, at));
            let result = group.all_reduce(&mut data, DataType::I64, Reduction::Sum);
            result.expect("all-reduce");
            let sum = |at| (0..ranks).map(|rank| element(rank, at)).sum();
            assert!(data == numbers(COUNT, sum));
        });
    }
}

#[test]
fn an_all_reduce_of_medium_size_is_right_with_four_and_eight_ranks() {
    // From recursive doubling over recursive halving to the ring; some counts are not divisible by the ranks.
    const COUNTS: [usize; 6] = [4096, 4097, 10_007, 32_767, 32_768, 32_769];
    for ranks in [4, 8] {
        on_ranks(ranks, WAIT, |mut group, _| {
            let (rank, ranks) = (group.rank(), group.rank_count());
            for count in COUNTS {
                let mut data = numbers(count, |at| element(rank, at));
                let result = group.all_reduce(&mut data, DataType::I64, Reduction::Sum);
                result.expect("all-reduce");
                let sum = |at| (0..ranks).map(|rank| element(rank, at)).sum();
                assert!(data == numbers(count, sum), "{count} elements");
            }
        });
    }
}

#[test]
fn messages_of_both_directions_pass_each_other() {
    on_ranks(3, WAIT, |group, mut messages| {
        let (rank, ranks) = (group.rank(), group.rank_count());
        let (came, late) = mpsc::channel();
        let peers = (0..ranks).filter(|peer| *peer != rank);
        let mut expected = 0;
        for peer in peers {
            for (tag, len) in [(0, 0), (1, 100), (2, 3_000_000)] {
                let byte = move |from: usize| u8::try_from(10 * from).expect("small") + tag;
                let gone = came.clone();
                // Both send first: neither waits for the other's receive.
                messages.send(
                    peer,
                    Box::new(vec![byte(rank); len]),
                    tag.into(),
                    Box::new(move |_, sent| gone.send(sent.map(|()| true)).expect("received")),
                );
                let came = came.clone();
                messages.recv(
                    peer,
                    Box::new(vec![0; len]),
                    tag.into(),
                    Box::new(move |payload, received| {
                        let right = *payload.bytes() == *vec![byte(peer); len];
                        came.send(received.map(|()| right)).expect("received");
                    }),
                );
                expected += 2;
            }
        }
        let begun = Instant::now();
        while !messages.is_idle() && begun.elapsed() < WAIT {
            if !messages.progress_all_peers() {
                std::thread::yield_now();
            }
        }
        let results: Vec<_> = late.try_iter().collect();
        assert_eq!(results.len(), expected);
        for right in results {
            assert!(
                right.expect("no error"),
                "the bytes are those that were sent"
            );
        }
        let refused = Box::new(move |_, sent: Result<(), Error>| {
            came.send(sent.map(|()| true)).expect("received")
        });
        messages.send(rank, Box::new(vec![1]), 0, refused);
        assert!(matches!(late.recv(), Ok(Err(Error::Protocol(_)))));
    });
}

#[test]
fn messages_after_one_of_a_wrong_size_are_errors() {
    on_ranks(2, WAIT, |group, mut messages| {
        let rank = group.rank();
        let sizes: &[usize] = match rank {
            0 => &[100 << 10, 64 << 10, 64 << 10, 64 << 10],
            _ => &[256 << 10, 64 << 10],
        };
        let (outcome, outcomes) = mpsc::channel();
        for size in sizes {
            let outcome = outcome.clone();
            let done = Box::new(move |_, done| outcome.send(done).expect("received"));
            match rank {
                0 => messages.send(1, Box::new(vec![7; *size]), 0, done),
                _ => messages.recv(0, Box::new(vec![0; *size]), 0, done),
            }
        }
        let begun = Instant::now();
        while !messages.is_idle() && begun.elapsed() < WAIT {
            if !messages.progress_all_peers() {
                std::thread::yield_now();
            }
        }
        let results: Vec<Result<(), Error>> = outcomes.try_iter().collect();
        assert_eq!(results.len(), sizes.len());
        if rank == 1 {
            for result in results {
                assert!(matches!(result, Err(Error::Protocol(_))), "{result:?}");
            }
            let done = Box::new(move |_, done| outcome.send(done).expect("received"));
            messages.recv(0, Box::new(vec![0; 1]), 0, done);
            assert!(matches!(outcomes.recv(), Ok(Err(Error::Protocol(_)))));
        }
    });
}

#[test]
fn a_rank_that_goes_is_an_error_for_all_others() {
    fn reduce<const BYTES: usize>(mut group: Group, _: RankMessenger) -> Option<Result<(), Error>> {
        group.barrier().expect("all are there");
        let (rank, mut data) = (group.rank(), vec![0; BYTES]);
        // The others fail one after the other, as each drops its group.
        (rank != 1).then(|| group.all_reduce(&mut data, DataType::I64, Reduction::Sum))
    }
    for work in [reduce::<8>, reduce::<{ 4 << 20 }>] {
        for (rank, result) in on_ranks(4, WAIT, work).into_iter().enumerate() {
            let Some(result) = result else {
                assert_eq!(rank, 1);
                continue;
            };
            let error = result.expect_err("rank 1 is gone");
            assert!(!matches!(error, Error::Timeout { .. }), "{error}");
        }
    }
}

#[test]
fn a_rank_that_never_calls_is_a_timeout() {
    static GIVEN_UP: Barrier = Barrier::new(2);
    // The timeout is also that of the connections, which take long on a busy machine.
    let results = on_ranks(2, Duration::from_secs(3), |mut group, messages| {
        let result = if group.rank() == 0 {
            group.barrier()
        } else {
            Ok(())
        };
        // The other rank stays connected until this one has given up.
        GIVEN_UP.wait();
        drop(messages);
        result
    });
    assert!(
        matches!(results[0], Err(Error::Timeout { .. })),
        "{results:?}"
    );
}

#[test]
fn wrong_buffers_are_refused() {
    on_ranks(2, WAIT, |mut group, _| {
        let error = group.all_reduce(&mut [0; 7], DataType::I32, Reduction::Sum);
        assert!(error.expect_err("7").to_string().contains("whole elements"));
        let error = group.all_gather(&[1], &mut [&mut [0]]);
        assert!(error.expect_err("one").to_string().contains("each rank"));
        let error = group.all_gather(&[1], &mut [&mut [0], &mut [0, 0]]);
        assert!(error.expect_err("2").to_string().contains("2 bytes"));
        group.barrier().expect("nothing was sent");
    });
}

#[test]
fn ranks_that_reduce_different_elements_or_reduce_differently_fail() {
    fn reduce<const BYTES: usize, const SCATTERS: bool, const OTHER_TYPE: bool>(
        mut group: Group,
        _: RankMessenger,
    ) -> Result<(), Error> {
        let (data, op) = match (group.rank(), OTHER_TYPE) {
            (0, _) => (DataType::F32, Reduction::Sum),
            (_, true) => (DataType::I32, Reduction::Sum),
            (_, false) => (DataType::F32, Reduction::Max),
        };
        let mut bytes = vec![1; BYTES];
        if SCATTERS {
            let input = bytes.clone();
            return group.reduce_scatter(&[&input, &input], &mut bytes, data, op);
        }
        group.all_reduce(&mut bytes, data, op)
    }
    for work in [
        reduce::<8, false, true>,
        reduce::<8, false, false>,
        reduce::<1_000_000, false, true>,
        reduce::<1_000_000, false, false>,
        reduce::<8, true, true>,
        reduce::<1_000_000, true, false>,
    ] {
        let errors: Vec<Error> = on_ranks(2, WAIT, work)
            .into_iter()
            .map(|result| result.expect_err("the ranks disagree"))
            .collect();
        // The rank that notices first closes its connections: the other one may see only that.
        let noticed = |error: &&Error| matches!(error, Error::CallsDiffer { .. });
        let error = errors.iter().find(noticed);
        let error = error.unwrap_or_else(|| panic!("{errors:?}")).to_string();
        assert!(
            error.contains("f32") && (error.contains("i32") || error.contains("max")),
            "{error}"
        );
        assert!(
            errors
                .iter()
                .all(|error| !matches!(error, Error::Timeout { .. }))
        );
    }
}

#[test]
fn ranks_that_call_different_collectives_fail() {
    let results = on_ranks(2, WAIT, |mut group, _| match group.rank() {
        0 => group.all_reduce(&mut [0; 8], DataType::I64, Reduction::Sum),
        _ => group.all_gather(&[0; 8], &mut [&mut [0; 8], &mut [0; 8]]),
    });
    assert!(results.iter().all(Result::is_err), "{results:?}");
    let noticed = |result: &Result<(), Error>| matches!(result, Err(Error::CallsDiffer { .. }));
    assert!(results.iter().any(noticed), "{results:?}");
}

#[test]
fn addresses_are_checked() {
    let device = Provider::softnic().device(None).expect("there is one");
    let pd = device.open().expect("opens").alloc_pd().expect("a domain");
    let here = Ipv4Addr::LOCALHOST.into();
    let prepare = |rank, ranks| PreparedGroup::new(&pd, &Config::default(), (rank, ranks), here);
    assert!(prepare(2, 2).is_err());
    assert!(prepare(0, 65).is_err());
    for addresses in [vec![vec![]; 3], vec![vec![]; 2], vec![vec![0; 102]; 2]] {
        let refused = prepare(0, 2).expect("listens").connect(&addresses, WAIT);
        assert!(matches!(refused, Err(Error::Protocol(_))), "{refused:?}");
    }
}

#[test]
fn a_rendezvous_is_given_up_when_the_caller_says_so() {
    let device = Provider::softnic().device(None).expect("there is one");
    let pd = device.open().expect("opens").alloc_pd().expect("a domain");
    let here = Ipv4Addr::LOCALHOST.into();
    let prepare = |rank| PreparedGroup::new(&pd, &Config::default(), (rank, 2), here);
    let ranks = [0, 1].map(|rank| prepare(rank).expect("listens"));
    let addresses = ranks
        .each_ref()
        .map(PreparedGroup::listener_handles_as_bytes);
    let [first, _never_connects] = ranks;
    let mut turns = 0;
    let given_up = first.connect_while(&addresses, Duration::from_secs(3600), || {
        turns += 1;
        turns <= 10
    });
    assert!(
        matches!(given_up, Err(Error::RendezvousGivenUp)),
        "{given_up:?}"
    );
    assert_eq!(turns, 11);
}
