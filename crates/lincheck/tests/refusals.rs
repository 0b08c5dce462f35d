//! Violations by a store, their descriptions, and long histories.

use lincheck::{
    Operation, OperationEnd, OperationOutcome, Reason, RegisterAction, Violation, WriteCondition,
    check,
};

fn operation(
    process: u64,
    call_ns: u64,
    at_ns: u64,
    action: RegisterAction,
    outcome: OperationOutcome,
) -> Operation {
    Operation {
        process,
        call_ns,
        action,
        end: Some(OperationEnd { at_ns, outcome }),
    }
}

fn put(process: u64, from: u64, to: u64, value: u64, version: u64) -> Operation {
    let action = RegisterAction::Write {
        value,
        condition: WriteCondition::Always,
    };
    operation(
        process,
        from,
        to,
        action,
        OperationOutcome::Done { version },
    )
}

fn get(process: u64, from: u64, to: u64, value: u64, version: u64) -> Operation {
    operation(
        process,
        from,
        to,
        RegisterAction::Read,
        OperationOutcome::FoundVersioned { value, version },
    )
}

fn gone(process: u64, from: u64, to: u64) -> Operation {
    operation(
        process,
        from,
        to,
        RegisterAction::Read,
        OperationOutcome::Absent,
    )
}

fn cas(process: u64, (from, to): (u64, u64), value: u64, expected: u64, version: u64) -> Operation {
    let action = RegisterAction::Write {
        value,
        condition: WriteCondition::Version(expected),
    };
    operation(
        process,
        from,
        to,
        action,
        OperationOutcome::Done { version },
    )
}

/// Returns the operation with an unknown outcome.
fn unknown(operation: Operation) -> Operation {
    Operation {
        end: None,
        ..operation
    }
}

fn violation(history: &[Operation]) -> Violation {
    *check(history).expect_err("it is wrong")
}

#[test]
fn a_stale_read_is_refused_and_shown_in_two_lines() {
    let mut history: Vec<Operation> = (1..=1000)
        .flat_map(|i| {
            [
                put(1, 100 * i, 100 * i + 10, i, i),
                get(2, 100 * i + 5, 100 * i + 30, i, i),
            ]
        })
        .collect();
    assert!(check(&history).is_ok());
    history.push(get(3, 50_050, 50_060, 499, 499));
    let violation = violation(&history);
    assert_eq!(violation.reason, Reason::NoValidOrder);
    assert_eq!(
        violation.window,
        [
            put(1, 50_000, 50_010, 500, 500),
            get(3, 50_050, 50_060, 499, 499)
        ]
    );
    let text = violation.to_string();
    assert!(
        text.contains("GET -> 0x1f3, version 499   fits nowhere"),
        "{text}"
    );
    assert!(
        text.contains("there can have been: 0x1f4, version 500"),
        "{text}"
    );
}

#[test]
fn a_lost_update_is_refused() {
    let history = [
        put(1, 0, 10, 1, 1),
        cas(1, (20, 40), 2, 1, 2),
        cas(2, (21, 41), 3, 1, 3),
    ];
    let violation = violation(&history);
    assert_eq!(violation.reason, Reason::NoValidOrder);
    assert_eq!(violation.window.len(), 3, "{violation}");
    // One compare-and-set after the other is linearizable.
    assert!(check(&[history[0], history[1], cas(2, (21, 41), 3, 2, 3)]).is_ok());
}

#[test]
fn values_from_nowhere_are_refused() {
    let of = |history: &[Operation]| violation(history).reason;
    assert_eq!(of(&[get(1, 0, 10, 5, 1)]), Reason::ReadNeverWritten);
    assert_eq!(
        of(&[get(1, 0, 10, 5, 1), put(2, 20, 30, 5, 1)]),
        Reason::ReadBeforeWrite
    );
    let refused = operation(
        2,
        0,
        5,
        RegisterAction::Write {
            value: 5,
            condition: WriteCondition::Version(3),
        },
        OperationOutcome::Refused { version: 0 },
    );
    assert_eq!(
        of(&[refused, get(1, 6, 10, 5, 1)]),
        Reason::ReadRefusedWrite
    );
    let put = put(2, 0, 5, 5, 1);
    assert_eq!(
        of(&[put, get(1, 6, 9, 5, 1), get(1, 10, 12, 5, 2)]),
        Reason::TwoVersions
    );
    assert_eq!(of(&[put, get(1, 6, 9, 5, 2)]), Reason::NoValidOrder);
    assert_eq!(of(&[put, put]), Reason::DuplicateValue);
}

#[test]
fn a_version_never_comes_back() {
    let remove = operation(
        1,
        20,
        30,
        RegisterAction::Remove { version: None },
        OperationOutcome::Done { version: 1 },
    );
    let after = |version| [put(1, 0, 10, 1, 1), remove, put(1, 40, 50, 2, version)];
    assert!(check(&after(2)).is_ok());
    assert_eq!(violation(&after(1)).reason, Reason::NoValidOrder);
}

#[test]
fn what_is_unknown_may_happen_late_or_never_but_once_and_not_early() {
    let put_2 = unknown(put(2, 20, 0, 2, 2));
    let history = |rest: &[Operation]| [&[put(1, 0, 10, 1, 1), put_2][..], rest].concat();
    assert!(check(&history(&[get(1, 900, 910, 1, 1)])).is_ok());
    assert!(check(&history(&[get(1, 30, 40, 1, 1), get(1, 900, 910, 2, 2)])).is_ok());
    assert!(check(&history(&[get(1, 30, 40, 2, 2), get(1, 900, 910, 1, 1)])).is_err());
    assert!(check(&history(&[get(1, 5, 15, 2, 2)])).is_err());
    let remove = unknown(operation(
        3,
        50,
        0,
        RegisterAction::Remove { version: None },
        OperationOutcome::Absent,
    ));
    assert!(check(&history(&[remove, gone(1, 60, 70), put(1, 80, 90, 3, 3)])).is_ok());
    // A removal of unknown outcome happens at most once.
    let twice = [gone(1, 60, 70), put(1, 80, 90, 3, 3), gone(1, 100, 110)];
    assert!(check(&history(&[&[remove][..], &twice].concat())).is_err());
    assert!(check(&history(&[&[remove, remove][..], &twice].concat())).is_ok());
}

/// A history file may contain any claim.
#[test]
fn nonsense_is_judged_and_told_in_words() {
    let last = put(1, 100, 110, 1, u64::MAX);
    let after = [
        last,
        unknown(put(2, 120, 0, 2, 0)),
        get(1, 130, 140, 1, u64::MAX),
    ];
    assert!(check(&after).is_ok());
    // An operation that returned before it was called.
    let early = violation(&[get(2, 200, 50, 1, u64::MAX), last]);
    assert!(early.to_string().contains("version 18446744073709551615"));
}

/// A million operations, sixteen at a time, of which a thousand have an unknown outcome.
#[test]
fn long_histories_are_judged() {
    let mut history = Vec::new();
    let mut version = 0;
    for i in 0..1_000_000u64 {
        let from = 10 * i;
        let to = from + 160;
        history.push(match i % 4 {
            0 => {
                version += 1;
                put(i % 16, from, to, i, version)
            }
            // No read finds these values.
            1 if i % 1_000 == 1 => unknown(put(i % 16, from, to, i, 0)),
            _ => get(i % 16, from, to, i / 4 * 4, version),
        });
    }
    let stats = check(&history).unwrap_or_else(|v| panic!("{v}"));
    assert_eq!(
        (stats.operations, stats.unknown_outcomes),
        (1_000_000, 1_000)
    );
    assert!(stats.max_possible_states < 100, "{stats:?}");
}

/// Forty processes, each with an outstanding operation at any time; one read returns an old value.
#[test]
fn a_window_is_short_also_when_many_are_under_way() {
    let mut history: Vec<Operation> = (1..5_000)
        .map(|i| match i % 2 {
            0 => get(i % 40, 10 * i, 10 * i + 400, i / 2, i / 2),
            _ => put(i % 40, 10 * i, 10 * i + 400, i.div_ceil(2), i.div_ceil(2)),
        })
        .collect();
    assert!(check(&history).is_ok());
    history.push(get(41, 30_000, 30_001, 1_000, 1_000));
    let violation = violation(&history);
    assert_eq!(violation.reason, Reason::NoValidOrder);
    assert!(
        violation.window.len() <= 64 && violation.omitted_operation_count == 0,
        "{violation}"
    );
    let text = violation.to_string();
    assert!(text.contains("41  GET -> 0x3e8, version 1000"), "{text}");
    // All changes that returned before the stale read have happened: the newest alone excludes it.
    assert!(text.lines().count() < 70, "{text}");
}
