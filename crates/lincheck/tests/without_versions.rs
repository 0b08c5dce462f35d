//! Violations by a store that reports no versions, and long histories of such a store.

use lincheck::{
    Operation, OperationEnd, OperationOutcome, Reason, RegisterAction, Violation, WriteCondition,
    check,
};

/// Returns an operation of process 1 with an outcome.
fn operation(
    (call_ns, at_ns): (u64, u64),
    action: RegisterAction,
    outcome: OperationOutcome,
) -> Operation {
    Operation {
        process: 1,
        call_ns,
        action,
        end: Some(OperationEnd { at_ns, outcome }),
    }
}

fn write(time: (u64, u64), value: u64, condition: WriteCondition, found: bool) -> Operation {
    let action = RegisterAction::Write { value, condition };
    operation(
        time,
        action,
        OperationOutcome::UnversionedChangeAnswer { found },
    )
}

fn put(time: (u64, u64), value: u64, found: bool) -> Operation {
    write(time, value, WriteCondition::Always, found)
}

fn insert(time: (u64, u64), value: u64, found: bool) -> Operation {
    write(time, value, WriteCondition::Absent, found)
}

fn update(time: (u64, u64), value: u64, found: bool) -> Operation {
    write(time, value, WriteCondition::Present, found)
}

fn remove(time: (u64, u64), found: bool) -> Operation {
    let action = RegisterAction::Remove { version: None };
    operation(
        time,
        action,
        OperationOutcome::UnversionedChangeAnswer { found },
    )
}

fn get(time: (u64, u64), value: u64) -> Operation {
    operation(
        time,
        RegisterAction::Read,
        OperationOutcome::FoundUnversioned { value },
    )
}

fn gone(time: (u64, u64)) -> Operation {
    operation(time, RegisterAction::Scan, OperationOutcome::Absent)
}

/// Returns the operation with an unknown outcome.
fn unknown(operation: Operation) -> Operation {
    Operation {
        end: None,
        ..operation
    }
}

#[track_caller]
fn violation(history: &[Operation]) -> Violation {
    *check(history).expect_err("it is wrong")
}

#[track_caller]
fn is_right(history: &[Operation]) {
    if let Err(violation) = check(history) {
        panic!("{violation}");
    }
}

#[test]
fn a_stale_read_is_refused_and_shown_in_few_lines() {
    let mut history: Vec<Operation> = (1..=1000)
        .flat_map(|i| {
            [
                put((100 * i, 100 * i + 10), i, i > 1),
                get((100 * i + 5, 100 * i + 30), i),
            ]
        })
        .collect();
    is_right(&history);
    let stale = get((50_050, 50_060), 499);
    history.push(stale);
    let violation = violation(&history);
    assert_eq!(violation.reason, Reason::NoValidOrder);
    assert_eq!(violation.misfit, Some(stale));
    assert!(violation.window.len() <= 4, "{violation}");
    let text = violation.to_string();
    assert!(text.contains("GET -> 0x1f3   fits nowhere"), "{text}");
    assert!(text.contains("there can have been: 0x1f4"), "{text}");
    assert!(!text.contains("version"), "{text}");
}

#[test]
fn a_lost_update_is_refused() {
    let history = [
        put((0, 10), 1, false),
        update((20, 30), 2, true),
        get((40, 50), 1),
    ];
    assert_eq!(violation(&history).reason, Reason::NoValidOrder);
    // The read is right while the update is outstanding. An update that was refused must have found nothing.
    is_right(&[history[0], update((20, 60), 2, true), history[2]]);
    assert!(check(&[history[0], update((20, 30), 2, false), history[2]]).is_err());
    // An overwritten value does not return either.
    let back = [
        put((0, 10), 1, false),
        put((20, 90), 2, true),
        get((30, 40), 2),
        get((50, 60), 1),
    ];
    assert_eq!(violation(&back).reason, Reason::NoValidOrder);
}

#[test]
fn a_ghost_after_a_delete_is_refused() {
    let history = [put((0, 10), 1, false), remove((20, 30), true)];
    is_right(&[&history[..], &[gone((40, 50))]].concat());
    for ghost in [
        get((40, 50), 1),
        remove((40, 50), true),
        insert((40, 50), 2, true),
        put((40, 50), 2, true),
    ] {
        let history = [&history[..], &[ghost]].concat();
        assert_eq!(violation(&history).misfit, Some(ghost));
    }
    // A value that another process may have put meanwhile is no ghost.
    let other = unknown(put((15, 0), 2, false));
    is_right(&[&history[..], &[other, get((40, 50), 2)]].concat());
    // A scan misses a value that is present all the time.
    let missed = [history[0], gone((20, 30))];
    assert_eq!(violation(&missed).reason, Reason::NoValidOrder);
    assert!(violation(&missed).to_string().contains("SCAN -> not there"));
}

#[test]
fn an_insert_that_succeeded_twice_is_refused() {
    let twice = [insert((0, 40), 1, false), insert((10, 50), 2, false)];
    let violation = violation(&twice);
    assert_eq!(
        (violation.reason, violation.window.len()),
        (Reason::NoValidOrder, 2)
    );
    is_right(&[twice[0], insert((10, 50), 2, true)]);
    let between = remove((20, 30), true);
    is_right(&[twice[0], between, twice[1]]);
}

#[test]
fn values_from_nowhere_are_refused() {
    let of = |history: &[Operation]| violation(history).reason;
    assert_eq!(of(&[get((0, 10), 5)]), Reason::ReadNeverWritten);
    let late = put((20, 30), 5, false);
    assert_eq!(of(&[get((0, 10), 5), late]), Reason::ReadBeforeWrite);
    let refused = update((0, 5), 5, false);
    assert_eq!(of(&[refused, get((6, 10), 5)]), Reason::ReadRefusedWrite);
    // The outcome is not an answer to this action.
    let odd = operation(
        (0, 5),
        RegisterAction::Read,
        OperationOutcome::UnversionedChangeAnswer { found: false },
    );
    assert_eq!(of(&[odd]), Reason::NoValidOrder);
    let odd = operation(
        (0, 5),
        RegisterAction::Remove { version: Some(3) },
        OperationOutcome::UnversionedChangeAnswer { found: false },
    );
    assert_eq!(of(&[odd]), Reason::NoValidOrder);
}

#[test]
fn what_is_unknown_may_happen_late_or_never_but_once_and_not_early() {
    let of = |rest: &[Operation]| {
        let history = [put((0, 10), 1, false), unknown(put((20, 0), 2, false))];
        check(&[&history[..], rest].concat()).is_ok()
    };
    assert!(of(&[get((900, 910), 1)]));
    assert!(of(&[get((30, 40), 1), get((900, 910), 2)]));
    assert!(!of(&[get((30, 40), 2), get((900, 910), 1)]));
    assert!(!of(&[get((5, 15), 2)]));
    let over = put((50, 60), 3, true);
    assert!(of(&[over, get((900, 910), 2)]));
    assert!(!of(&[get((30, 40), 2), over, get((900, 910), 2)]));
    // A removal of unknown outcome explains one absence only.
    let absences = |removals: usize| {
        let removals = vec![unknown(remove((15, 0), true)); removals];
        let rest = [gone((30, 40)), put((50, 60), 3, false), gone((70, 80))];
        of(&[&removals[..], &rest].concat())
    };
    assert_eq!([0, 1, 2].map(absences), [false, false, true]);
}

/// Eight processes see all that happens, one after the other, at times that overlap. Some die.
#[test]
fn long_histories_are_judged() {
    let mut history = Vec::new();
    let mut there: Option<u64> = None;
    let mut dice = 1u64;
    for i in 0..200_000u64 {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // The operation takes effect at 10 * i + 40.
        let time = (10 * i + (dice >> 40) % 40, 10 * i + 41 + (dice >> 50) % 40);
        let found = there.is_some();
        let operation = match (dice >> 33) % 12 {
            0 | 1 => put(time, i, found),
            2 => insert(time, i, found),
            3 => update(time, i, found),
            4 => remove(time, found),
            _ => there.map_or(gone(time), |value| get(time, value)),
        };
        let dies = i % 1_000 == 999;
        if operation_changes(&operation, found) && !(dies && i % 2 == 0) {
            there = match operation.action {
                RegisterAction::Write { value, .. } => Some(value),
                _ => None,
            };
        }
        history.push(if dies { unknown(operation) } else { operation });
    }
    let stats = check(&history).unwrap_or_else(|v| panic!("{v}"));
    assert_eq!((stats.operations, stats.unknown_outcomes), (200_000, 200));
    assert!(stats.max_possible_states < 2_000, "{stats:?}");
    println!("{stats:?}");
}

/// Returns true if an operation changes the register, given whether it has a value.
fn operation_changes(operation: &Operation, found: bool) -> bool {
    match operation.action {
        RegisterAction::Read | RegisterAction::Scan => false,
        RegisterAction::Write { condition, .. } => match condition {
            WriteCondition::Absent => !found,
            WriteCondition::Present => found,
            _ => true,
        },
        RegisterAction::Remove { .. } => found,
    }
}
