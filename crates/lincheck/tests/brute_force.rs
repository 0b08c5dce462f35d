//! Compares the checker with a search that tries every order, on histories of a few operations.

use lincheck::{Operation, OperationEnd, OperationOutcome, RegisterAction, WriteCondition, check};
use proptest::prelude::*;

/// The register's content, and the highest version so far.
type Register = (Option<(u64, u64)>, u64);

/// Returns the register after an operation that happens now, and its outcome. A change gets `version`.
fn happens(
    (there, highest): Register,
    action: RegisterAction,
    version: u64,
) -> (Register, OperationOutcome) {
    let now = there.map_or(0, |(_, version)| version);
    let refused = ((there, highest), OperationOutcome::Refused { version: now });
    match action {
        RegisterAction::Read | RegisterAction::Scan => {
            let outcome = match there {
                Some((value, version)) => OperationOutcome::FoundVersioned { value, version },
                None => OperationOutcome::Absent,
            };
            ((there, highest), outcome)
        }
        RegisterAction::Write { value, condition } => {
            let holds = match condition {
                WriteCondition::Always => true,
                WriteCondition::Absent => now == 0,
                WriteCondition::Present => now != 0,
                WriteCondition::Version(wanted) => now != 0 && now == wanted,
            };
            if holds {
                (
                    (Some((value, version)), version),
                    OperationOutcome::Done { version },
                )
            } else {
                refused
            }
        }
        RegisterAction::Remove { version: None } if now == 0 => {
            ((there, highest), OperationOutcome::Absent)
        }
        RegisterAction::Remove { version: Some(v) } if v != now || now == 0 => refused,
        RegisterAction::Remove { .. } => ((None, highest), OperationOutcome::Done { version: now }),
    }
}

/// Does the same as [`happens`]. If `plain`, the outcome is that of a store without versions.
fn comes_to(
    plain: bool,
    now: Register,
    action: RegisterAction,
    version: u64,
) -> (Register, OperationOutcome) {
    let (then, outcome) = happens(now, action, version);
    let found = now.0.is_some();
    let outcome = match outcome {
        OperationOutcome::FoundVersioned { value, .. } if plain => {
            OperationOutcome::FoundUnversioned { value }
        }
        OperationOutcome::Absent if action.is_read_only() => outcome,
        _ if plain => OperationOutcome::UnversionedChangeAnswer { found },
        outcome => outcome,
    };
    (then, outcome)
}

/// Returns all versions in a history.
fn versions(history: &[Operation]) -> Vec<u64> {
    let of_outcome = |o: &Operation| match o.end?.outcome {
        OperationOutcome::FoundVersioned { version, .. }
        | OperationOutcome::Done { version }
        | OperationOutcome::Refused { version } => Some(version),
        OperationOutcome::Absent
        | OperationOutcome::FoundUnversioned { .. }
        | OperationOutcome::UnversionedChangeAnswer { .. } => None,
    };
    let of_action = |o: &Operation| match o.action {
        RegisterAction::Write {
            condition: WriteCondition::Version(v),
            ..
        }
        | RegisterAction::Remove { version: Some(v) } => Some(v),
        _ => None,
    };
    let all = history.iter().flat_map(|o| [of_outcome(o), of_action(o)]);
    all.flatten().collect()
}

/// Returns true if the operations in `left` can happen in some order.
fn fits(plain: bool, history: &[Operation], left: &[usize], now: Register) -> bool {
    if left.iter().all(|&i| history[i].end.is_none()) {
        return true;
    }
    let first_return = left
        .iter()
        .filter_map(|&i| history[i].end.map(|e| e.at_ns))
        .min();
    left.iter().any(|&i| {
        let Operation {
            call_ns,
            action,
            end,
            ..
        } = history[i];
        if first_return.is_some_and(|first| call_ns > first) {
            return false;
        }
        let rest: Vec<usize> = left.iter().copied().filter(|&j| j != i).collect();
        let mut new = vec![now.1 + 1];
        new.extend(versions(history).into_iter().filter(|v| *v > now.1));
        new.into_iter().any(|version| {
            let (then, outcome) = comes_to(plain, now, action, version);
            end.is_none_or(|end| end.outcome == outcome) && fits(plain, history, &rest, then)
        })
    })
}

/// How to make an operation: action, ns from call to effect, order of the effect, ns from effect to return, and whether
/// the outcome is known.
type Recipe = (u8, u64, u64, u64, u8);

/// Makes a linearizable history: the operations take effect one after the other.
fn history(plain: bool, recipes: &[Recipe]) -> Vec<Operation> {
    let mut order: Vec<usize> = (0..recipes.len()).collect();
    order.sort_by_key(|&i| (recipes[i].2, i));
    let mut now: Register = (None, 0);
    let mut all = Vec::new();
    for i in order {
        let (what, before, at, after, unknown) = recipes[i];
        let value = 100 + i as u64;
        let version = Some(now.1.max(1) - u64::from(what % 2 == 0 && now.1 > 1));
        let action = match what % 8 {
            5 if plain => RegisterAction::Remove { version: None },
            6 if plain => RegisterAction::Write {
                value,
                condition: WriteCondition::Absent,
            },
            0 => RegisterAction::Scan,
            1..=2 => RegisterAction::Read,
            3 => RegisterAction::Write {
                value,
                condition: WriteCondition::Always,
            },
            4 => RegisterAction::Write {
                value,
                condition: WriteCondition::Absent,
            },
            5 => RegisterAction::Write {
                value,
                condition: WriteCondition::Version(now.1.max(1)),
            },
            6 => RegisterAction::Remove {
                version: if what > 128 { version } else { None },
            },
            _ => RegisterAction::Write {
                value,
                condition: WriteCondition::Present,
            },
        };
        let (then, outcome) = comes_to(plain, now, action, now.1 + 1);
        let (unknown, never) = (unknown < 110, unknown < 55);
        if !never {
            now = then;
        }
        all.push(Operation {
            process: i as u64,
            call_ns: (at * 10).saturating_sub(before),
            action,
            end: (!unknown).then_some(OperationEnd {
                at_ns: at * 10 + after,
                outcome,
            }),
        });
    }
    all
}

fn recipes() -> impl Strategy<Value = Vec<Recipe>> {
    prop::collection::vec(
        (any::<u8>(), 0u64..40, 0u64..12, 0u64..40, any::<u8>()),
        0..7,
    )
}

/// Replaces the outcome by another one, which is usually wrong.
fn spoil(operation: &mut Operation, how: u64) {
    let Some(end) = &mut operation.end else {
        return;
    };
    let version = how % 4;
    end.outcome = match (end.outcome, how % 5) {
        (OperationOutcome::FoundVersioned { value, version }, 0) => {
            OperationOutcome::FoundVersioned {
                value,
                version: version + 1,
            }
        }
        (OperationOutcome::FoundVersioned { .. }, 1) => OperationOutcome::Absent,
        (OperationOutcome::FoundVersioned { version, .. }, _) => OperationOutcome::FoundVersioned {
            value: 100 + how % 8,
            version,
        },
        (OperationOutcome::Absent, 0) if operation.action == RegisterAction::Read => {
            OperationOutcome::FoundVersioned {
                value: 100 + how % 8,
                version: version + 1,
            }
        }
        (OperationOutcome::Done { version }, 0) => OperationOutcome::Done {
            version: version + 1,
        },
        (OperationOutcome::Done { version }, 1) => OperationOutcome::Refused { version },
        (OperationOutcome::Done { .. }, _) => OperationOutcome::Done {
            version: version + 1,
        },
        (OperationOutcome::Refused { .. }, _) => OperationOutcome::Refused { version },
        (OperationOutcome::Absent, _) => OperationOutcome::Done {
            version: version + 1,
        },
        (outcome, _) => outcome,
    };
}

/// Does the same as [`spoil`], for a store that reports no versions.
fn spoil_plain(operation: &mut Operation, how: u64) {
    let Some(end) = &mut operation.end else {
        return;
    };
    let value = 100 + how % 8;
    end.outcome = match (end.outcome, how % 3) {
        (OperationOutcome::UnversionedChangeAnswer { found }, _) => {
            OperationOutcome::UnversionedChangeAnswer { found: !found }
        }
        (OperationOutcome::FoundUnversioned { .. }, 0) => OperationOutcome::Absent,
        _ => OperationOutcome::FoundUnversioned { value },
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn what_happened_is_accepted(recipes in recipes(), plain: bool) {
        let history = history(plain, &recipes);
        if let Err(violation) = check(&history) {
            panic!("{violation}\n{history:#?}");
        }
    }

    #[test]
    fn agrees_with_every_order(
        recipes in recipes(), at in any::<prop::sample::Index>(), how: u64, second: Option<u64>,
    ) {
        agrees(false, &recipes, (at, how), second);
    }

    #[test]
    fn agrees_with_every_order_where_no_versions_are_told(
        recipes in recipes(), at in any::<prop::sample::Index>(), how: u64, second: Option<u64>,
    ) {
        agrees(true, &recipes, (at, how), second);
    }
}

/// Spoils a history once or twice, and compares the checker with the brute-force search.
fn agrees(
    plain: bool,
    recipes: &[Recipe],
    (at, how): (prop::sample::Index, u64),
    second: Option<u64>,
) {
    let mut history = history(plain, recipes);
    let spoil = if plain { spoil_plain } else { spoil };
    if !history.is_empty() {
        let i = at.index(history.len());
        spoil(&mut history[i], how);
        if let Some(how) = second {
            let i = usize::try_from(how >> 32).expect("64 bits") % history.len();
            spoil(&mut history[i], how);
        }
    }
    let all: Vec<usize> = (0..history.len()).collect();
    let expected = fits(plain, &history, &all, (None, 0));
    match check(&history) {
        Ok(_) => assert!(expected, "accepted: {history:#?}"),
        Err(violation) => assert!(!expected, "refused: {violation}\n{history:#?}"),
    }
}
