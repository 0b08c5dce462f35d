//! Tests of all transitions, with and without each attribute, against the kernel's table.

mod golden;

use proptest::prelude::*;

use super::attributes::*;
use super::check::*;
use super::transitions::*;
use super::*;
use golden::GOLDEN;

/// Returns the expected result of [`transition_attrs`], found by a simple search of the kernel's table.
fn golden(qp_type: QpType, from: QpState, to: QpState) -> Option<RequiredOptionalBits> {
    if to == QpState::Reset || (to == QpState::Err && from != QpState::Reset) {
        return Some((0, 0));
    }
    let (_, _, attrs) = GOLDEN.iter().find(|row| row.0 == from && row.1 == to)?;
    Some(match qp_type {
        QpType::Rc => attrs[0],
        QpType::Uc => attrs[1],
        QpType::Ud => attrs[2],
        QpType::XrcSend => attrs[3],
        QpType::XrcRecv => attrs[4],
        QpType::RawPacket => attrs[5],
    })
}

const LIMITS: DeviceLimits = DeviceLimits {
    phys_port_cnt: 2,
    pkey_tbl_len: 8,
    gid_tbl_len: 16,
    max_mtu_code: IBV_MTU_4096,
    max_qp_init_rd_atom: 16,
    max_qp_rd_atom: 32,
};

/// Returns attributes that are valid for any mask, for a QP that goes from `from` to `to`.
fn attr(from: QpState, to: QpState) -> AttributesToCheck {
    let on_port = |port_num| AddressVectorToCheck {
        port_num,
        ..AddressVectorToCheck::default()
    };
    AttributesToCheck {
        qp_state: to.code(),
        cur_qp_state: from.code(),
        path_mtu: IBV_MTU_4096,
        port_num: 1,
        alt_port_num: 2,
        ah_attr: on_port(1),
        alt_ah_attr: on_port(2),
        ..AttributesToCheck::default()
    }
}

fn check(qp_type: QpType, from: QpState, to: QpState, mask: i32) -> Result<QpState, ModifyQpError> {
    check_transition(qp_type, from, mask, &attr(from, to), &LIMITS)
}

fn every_case() -> impl Iterator<Item = (QpType, QpState, QpState)> {
    QpType::ALL.into_iter().flat_map(|qp_type| {
        QpState::ALL
            .into_iter()
            .flat_map(move |from| QpState::ALL.into_iter().map(move |to| (qp_type, from, to)))
    })
}

fn every_bit() -> impl Iterator<Item = i32> {
    (0..32).map(|shift| 1_i32 << shift)
}

#[test]
fn codes_round_trip_and_others_are_refused() {
    for (code, state) in (0..).zip(QpState::ALL) {
        assert_eq!(state.code(), code);
        assert_eq!(QpState::try_from(code), Ok(state));
    }
    for code in [7, 8, 255, u32::MAX] {
        assert_eq!(QpState::try_from(code), Err(UnknownQpState(code)));
    }
    for (code, qp_type) in [2, 3, 4, 8, 9, 10].into_iter().zip(QpType::ALL) {
        assert_eq!(qp_type.code(), code);
        assert_eq!(QpType::try_from(code), Ok(qp_type));
    }
    for code in [0, 1, 5, 7, 11, 255, u32::MAX] {
        assert_eq!(QpType::try_from(code), Err(UnsupportedQpType(code)));
    }
}

#[test]
fn states_print_as_in_the_specification() {
    let printed: Vec<String> = QpState::ALL.iter().map(ToString::to_string).collect();
    assert_eq!(
        printed,
        ["RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"]
    );
    assert_eq!(format!("{:<6}|", QpState::Rtr), "RTR   |");
}

#[test]
fn the_table_is_the_golden_one() {
    for (qp_type, from, to) in every_case() {
        let ours =
            transition_attrs(qp_type, from, to).map(|attrs| (attrs.required.0, attrs.optional.0));
        assert_eq!(ours, golden(qp_type, from, to), "{qp_type} {from} to {to}");
    }
}

#[test]
fn the_required_attributes_are_those_of_the_man_page() {
    let required = |qp_type, from, to| {
        transition_attrs(qp_type, from, to)
            .unwrap()
            .required
            .to_string()
    };
    let (reset, init, rtr, rts) = (QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts);
    assert_eq!(
        required(QpType::Ud, reset, init),
        "IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY"
    );
    assert_eq!(required(QpType::Ud, init, rtr), "0");
    assert_eq!(required(QpType::Ud, rtr, rts), "IBV_QP_SQ_PSN");
    assert_eq!(
        required(QpType::Uc, reset, init),
        "IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT"
    );
    assert_eq!(
        required(QpType::Uc, init, rtr),
        "IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_DEST_QPN"
    );
    assert_eq!(required(QpType::Uc, rtr, rts), "IBV_QP_SQ_PSN");
    assert_eq!(
        required(QpType::Rc, reset, init),
        "IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX | IBV_QP_PORT"
    );
    assert_eq!(
        required(QpType::Rc, init, rtr),
        "IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_RQ_PSN | IBV_QP_MIN_RNR_TIMER | IBV_QP_MAX_DEST_RD_ATOMIC | \
         IBV_QP_DEST_QPN"
    );
    assert_eq!(
        required(QpType::Rc, rtr, rts),
        "IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_SQ_PSN"
    );
}

#[test]
fn required_bits_suffice_each_is_needed_and_no_foreign_bit_is_taken() {
    let mut legal = 0;
    for (qp_type, from, to) in every_case() {
        let Some((required, optional)) = golden(qp_type, from, to) else {
            for mask in every_bit().map(|bit| bit | IBV_QP_STATE) {
                assert!(
                    check(qp_type, from, to, mask).is_err(),
                    "{qp_type} {from} to {to}"
                );
            }
            assert_eq!(
                check(qp_type, from, to, IBV_QP_STATE),
                Err(ModifyQpError::NoTransition { qp_type, from, to })
            );
            continue;
        };
        legal += 1;
        let required_mask = required | IBV_QP_STATE;
        assert_eq!(
            check(qp_type, from, to, required_mask),
            Ok(to),
            "{qp_type} {from} to {to}"
        );
        assert_eq!(
            check(qp_type, from, to, required_mask | optional),
            Ok(to),
            "{qp_type} {from} to {to}"
        );
        for bit in every_bit() {
            let result = if required & bit != 0 {
                check(qp_type, from, to, required_mask & !bit)
            } else {
                check(qp_type, from, to, required_mask | bit)
            };
            if (optional | IBV_QP_STATE) & bit != 0 {
                assert_eq!(
                    result,
                    Ok(to),
                    "{qp_type} {from} to {to}, {}",
                    AttrMask(bit)
                );
                continue;
            }
            let (missing, not_allowed) = if required & bit != 0 {
                (bit, 0)
            } else {
                (0, bit)
            };
            assert_eq!(
                result,
                Err(ModifyQpError::WrongAttrs {
                    qp_type,
                    from,
                    to,
                    missing: AttrMask(missing),
                    not_allowed: AttrMask(not_allowed),
                })
            );
        }
    }
    // For each of 6 types: 7 transitions to RESET, 6 to ERR, and the 9 rows of the table.
    assert_eq!(legal, 6 * (7 + 6 + 9));
}

#[test]
fn without_ibv_qp_state_the_qp_stays() {
    let stays = |qp_type, cur, mask| check(qp_type, cur, QpState::Reset, mask & !IBV_QP_STATE);
    assert_eq!(
        stays(QpType::Rc, QpState::Rts, IBV_QP_MIN_RNR_TIMER),
        Ok(QpState::Rts)
    );
    assert_eq!(
        stays(QpType::Ud, QpState::Init, IBV_QP_QKEY),
        Ok(QpState::Init)
    );
    assert_eq!(
        stays(QpType::Rc, QpState::Sqd, IBV_QP_TIMEOUT),
        Ok(QpState::Sqd)
    );
    assert_eq!(stays(QpType::Rc, QpState::Reset, 0), Ok(QpState::Reset));
    assert_eq!(stays(QpType::Rc, QpState::Err, 0), Ok(QpState::Err));
    assert!(stays(QpType::Rc, QpState::Rtr, IBV_QP_MIN_RNR_TIMER).is_err());
    assert!(stays(QpType::Uc, QpState::Sqe, IBV_QP_ACCESS_FLAGS).is_err());
}

#[test]
fn cur_state_must_be_the_state_of_the_qp() {
    let mask = IBV_QP_STATE | IBV_QP_CUR_STATE;
    let mut attr = attr(QpState::Rts, QpState::Rts);
    let error = check_transition(QpType::Ud, QpState::Sqe, mask, &attr, &LIMITS).unwrap_err();
    assert_eq!(
        error,
        ModifyQpError::CurStateMismatch {
            qp_type: QpType::Ud,
            from: QpState::Sqe,
            to: QpState::Rts,
            assumed: QpState::Rts
        }
    );
    assert_eq!(
        error.to_string(),
        "UD QP going to RTS: cur_qp_state = RTS, but the QP is in SQE"
    );
    attr.cur_qp_state = QpState::Sqe.code();
    assert_eq!(
        check_transition(QpType::Ud, QpState::Sqe, mask, &attr, &LIMITS),
        Ok(QpState::Rts)
    );
    // The field `cur_qp_state` is ignored if its bit is not set.
    attr.cur_qp_state = 99;
    assert_eq!(
        check_transition(QpType::Ud, QpState::Sqe, IBV_QP_STATE, &attr, &LIMITS),
        Ok(QpState::Rts)
    );
}

#[test]
fn codes_that_are_no_state_are_refused() {
    let mut attr = attr(QpState::Rts, QpState::Rts);
    attr.cur_qp_state = u32::MAX;
    let error =
        check_transition(QpType::Rc, QpState::Rts, IBV_QP_CUR_STATE, &attr, &LIMITS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RC QP in RTS: cur_qp_state = 4294967295 is not a QP state (0 RESET to 6 ERR)"
    );
    attr.qp_state = 7;
    let error =
        check_transition(QpType::Rc, QpState::Rts, IBV_QP_STATE, &attr, &LIMITS).unwrap_err();
    assert_eq!(
        error.to_string(),
        "RC QP in RTS: qp_state = 7 is not a QP state (0 RESET to 6 ERR)"
    );
}

#[test]
fn refusals_name_states_bits_and_ranges() {
    let text = |result: Result<QpState, ModifyQpError>| {
        let error = result.unwrap_err();
        error.to_string()
    };
    assert_eq!(
        text(check(
            QpType::Rc,
            QpState::Reset,
            QpState::Rts,
            IBV_QP_STATE
        )),
        "RC QP in RESET cannot go to RTS; it can go to RESET, INIT"
    );
    assert_eq!(
        text(check(
            QpType::Uc,
            QpState::Init,
            QpState::Rtr,
            IBV_QP_STATE | IBV_QP_AV | IBV_QP_RQ_PSN | IBV_QP_QKEY | 1 << 23
        )),
        "UC QP from INIT to RTR: missing IBV_QP_PATH_MTU | IBV_QP_DEST_QPN; not allowed IBV_QP_QKEY | 0x800000"
    );
    let mut attr = attr(QpState::Reset, QpState::Init);
    attr.port_num = 3;
    let mask = IBV_QP_STATE | CONNECTED_PORT_ATTRS;
    assert_eq!(
        text(check_transition(
            QpType::Rc,
            QpState::Reset,
            mask,
            &attr,
            &LIMITS
        )),
        "RC QP from RESET to INIT: port_num = 3 is not in 1..=2"
    );
}

/// A function that sets one field to a value.
type Set = fn(&mut AttributesToCheck, u32);

/// Returns every field with a range: a transition that uses the field, its name, its smallest and its
/// largest value.
fn every_range() -> Vec<(QpState, QpState, &'static str, u32, u32, Set)> {
    fn byte(value: u32) -> u8 {
        u8::try_from(value).unwrap()
    }
    use QpState::{Init, Reset, Rtr, Rts};
    vec![
        (Reset, Init, "port_num", 1, 2, |a, v| a.port_num = byte(v)),
        (Reset, Init, "pkey_index", 0, 7, |a, v| {
            a.pkey_index = u16::try_from(v).unwrap()
        }),
        (Init, Rtr, "path_mtu", 1, 5, |a, v| a.path_mtu = v),
        (Init, Rtr, "ah_attr.port_num", 1, 2, |a, v| {
            a.ah_attr.port_num = byte(v)
        }),
        (Init, Rtr, "ah_attr.grh.sgid_index", 0, 15, |a, v| {
            a.ah_attr.is_global = true;
            a.ah_attr.sgid_index = byte(v);
        }),
        (Init, Rtr, "dest_qp_num", 0, 0xff_ffff, |a, v| {
            a.dest_qp_num = v
        }),
        (Init, Rtr, "rq_psn", 0, 0xff_ffff, |a, v| a.rq_psn = v),
        (Init, Rtr, "max_dest_rd_atomic", 0, 32, |a, v| {
            a.max_dest_rd_atomic = byte(v)
        }),
        (Init, Rtr, "alt_port_num", 1, 2, |a, v| {
            a.alt_port_num = byte(v)
        }),
        (Init, Rtr, "alt_pkey_index", 0, 7, |a, v| {
            a.alt_pkey_index = u16::try_from(v).unwrap()
        }),
        (Init, Rtr, "alt_timeout", 0, 31, |a, v| {
            a.alt_timeout = byte(v)
        }),
        (Init, Rtr, "alt_ah_attr.port_num", 1, 2, |a, v| {
            a.alt_ah_attr.port_num = byte(v)
        }),
        (Init, Rtr, "alt_ah_attr.grh.sgid_index", 0, 15, |a, v| {
            a.alt_ah_attr.is_global = true;
            a.alt_ah_attr.sgid_index = byte(v);
        }),
        (Rtr, Rts, "sq_psn", 0, 0xff_ffff, |a, v| a.sq_psn = v),
        (Rtr, Rts, "max_rd_atomic", 0, 16, |a, v| {
            a.max_rd_atomic = byte(v)
        }),
        (Rtr, Rts, "timeout", 0, 31, |a, v| a.timeout = byte(v)),
        (Rtr, Rts, "retry_cnt", 0, 7, |a, v| a.retry_cnt = byte(v)),
        (Rtr, Rts, "rnr_retry", 0, 7, |a, v| a.rnr_retry = byte(v)),
        (Rtr, Rts, "path_mig_state", 0, 2, |a, v| {
            a.path_mig_state = v
        }),
    ]
}

#[test]
fn values_at_the_ends_of_a_range_pass_and_those_beyond_fail() {
    let checked = every_range();
    let known = attribute_ranges(&AttributesToCheck::default(), &LIMITS);
    assert_eq!(checked.len(), known.len(), "a range is not tested");
    assert!(
        known
            .iter()
            .all(|range| checked.iter().any(|case| case.2 == range.field_name))
    );

    for (from, to, field, min, max, set) in checked {
        let (required, optional) = golden(QpType::Rc, from, to).unwrap();
        let try_value = |value| {
            let mut attr = attr(from, to);
            set(&mut attr, value);
            check_transition(
                QpType::Rc,
                from,
                IBV_QP_STATE | required | optional,
                &attr,
                &LIMITS,
            )
        };
        let refused = |value| {
            Err(ModifyQpError::OutOfRange {
                qp_type: QpType::Rc,
                from,
                to,
                field,
                value,
                min,
                max,
            })
        };
        assert_eq!(try_value(min), Ok(to), "{field} = {min}");
        assert_eq!(try_value(max), Ok(to), "{field} = {max}");
        assert_eq!(try_value(max + 1), refused(max + 1));
        assert_eq!(try_value(255.max(max + 1)), refused(255.max(max + 1)));
        if let Some(below) = min.checked_sub(1) {
            assert_eq!(try_value(below), refused(below));
        }
    }
}

#[test]
fn a_field_counts_only_with_its_bit() {
    let mut attr = attr(QpState::Rts, QpState::Rts);
    for (_, _, _, _, max, set) in every_range() {
        set(&mut attr, max + 1);
    }
    assert_eq!(
        check_transition(QpType::Rc, QpState::Rts, IBV_QP_STATE, &attr, &LIMITS),
        Ok(QpState::Rts)
    );
}

#[test]
fn the_source_gid_counts_only_with_a_global_route() {
    let (required, _) = golden(QpType::Rc, QpState::Init, QpState::Rtr).unwrap();
    let mut attr = attr(QpState::Init, QpState::Rtr);
    attr.ah_attr.sgid_index = 255;
    let check = |attr: &AttributesToCheck| {
        check_transition(
            QpType::Rc,
            QpState::Init,
            IBV_QP_STATE | required,
            attr,
            &LIMITS,
        )
    };
    assert_eq!(check(&attr), Ok(QpState::Rtr));
    attr.ah_attr.is_global = true;
    assert!(check(&attr).is_err());
}

#[test]
fn a_path_mtu_above_that_of_the_port_is_refused() {
    let (required, _) = golden(QpType::Uc, QpState::Init, QpState::Rtr).unwrap();
    let limits = DeviceLimits {
        max_mtu_code: 3,
        ..LIMITS
    };
    let check = |path_mtu| {
        let mut attr = attr(QpState::Init, QpState::Rtr);
        attr.path_mtu = path_mtu;
        check_transition(
            QpType::Uc,
            QpState::Init,
            IBV_QP_STATE | required,
            &attr,
            &limits,
        )
    };
    assert_eq!(check(3), Ok(QpState::Rtr));
    assert!(check(4).is_err());
}

proptest! {
    #[test]
    fn any_mask_is_judged_as_the_golden_table_says(
        qp_type in 0_usize..3,
        from in 0_usize..7,
        to in 0_usize..7,
        mask in prop_oneof![any::<i32>(), 0_i32..1 << 21, proptest::sample::subsequence(
            (0..21).map(|shift| 1_i32 << shift).collect::<Vec<_>>(), 0..8).prop_map(|bits| bits.iter().sum())],
    ) {
        let (qp_type, from, to) = (QpType::ALL[qp_type], QpState::ALL[from], QpState::ALL[to]);
        let next = if mask & IBV_QP_STATE != 0 { to } else { from };
        let legal = golden(qp_type, from, next).is_some_and(|(required, optional)| {
            (0..32).map(|shift| 1_i32 << shift).all(|bit| {
                let set = mask & bit != 0;
                if bit == IBV_QP_STATE { true }
                else if required & bit != 0 { set }
                else { !set || optional & bit != 0 }
            })
        });
        prop_assert_eq!(check(qp_type, from, to, mask).ok(), legal.then_some(next));
    }

    #[test]
    fn no_attributes_make_it_panic(
        qp_type in 0_usize..3,
        from in 0_usize..7,
        mask in any::<i32>(),
        numbers in any::<[u32; 7]>(),
        bytes in any::<[u8; 12]>(),
        limits in any::<[u8; 4]>(),
    ) {
        let mut attr = AttributesToCheck::default();
        [attr.qp_state, attr.cur_qp_state, attr.path_mtu, attr.path_mig_state] =
            [numbers[0], numbers[1], numbers[2], numbers[3]];
        [attr.rq_psn, attr.sq_psn, attr.dest_qp_num] = [numbers[4], numbers[5], numbers[6]];
        [attr.port_num, attr.timeout, attr.retry_cnt, attr.rnr_retry] = [bytes[0], bytes[1], bytes[2], bytes[3]];
        [attr.max_rd_atomic, attr.max_dest_rd_atomic] = [bytes[4], bytes[5]];
        [attr.ah_attr.port_num, attr.ah_attr.sgid_index] = [bytes[7], bytes[9]];
        attr.ah_attr.is_global = bytes[8] != 0;
        let limits = DeviceLimits {
            phys_port_cnt: limits[0],
            pkey_tbl_len: limits[1].into(),
            gid_tbl_len: limits[2].into(),
            max_mtu_code: limits[3].into(),
            max_qp_init_rd_atom: bytes[10],
            max_qp_rd_atom: bytes[11],
        };
        let result = check_transition(QpType::ALL[qp_type], QpState::ALL[from], mask, &attr, &limits);
        if let Err(error) = result {
            prop_assert!(!error.to_string().is_empty());
        }
    }
}
