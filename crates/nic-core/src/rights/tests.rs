use proptest::prelude::*;

use super::*;

const ALL: [Access; 7] = [
    Access::LocalRead,
    Access::LocalWrite,
    Access::RemoteWrite,
    Access::RemoteRead,
    Access::RemoteAtomic,
    Access::FlushGlobal,
    Access::FlushPersistent,
];

const PD: u32 = 7;
const QPN: u32 = 0x00ab_cdef;

/// Returns a region and a queue pair that allow `access` and no other access.
fn good(access: Access) -> (RegionRights, QpMemoryRights) {
    let region = RegionRights {
        start: 1 << 20,
        len: 64,
        access: access.flag(),
        owner: OwningPdOrQp::region_in_pd(PD),
    };
    let qp = QpMemoryRights {
        requester_access: if access.is_local() { 0 } else { access.flag() },
        pd_number: PD,
        qpn: QPN,
    };
    (region, qp)
}

#[test]
fn nothing_else_is_needed() {
    for access in ALL {
        let (region, qp) = good(access);
        for (addr, len) in [(0, 64), (0, 0), (63, 1), (64, 0), (8, 16)] {
            let permitted = authorize(&region, (region.start + addr, len), access, &qp).unwrap();
            assert_eq!((permitted.offset(), permitted.len()), (addr, len));
            assert!(!permitted.is_in_whole_address_space_region());
        }
    }
}

#[test]
fn each_condition_alone_denies_with_its_reason() {
    for access in ALL {
        let (region, qp) = good(access);
        let at = (region.start, 8);
        let others = !access.flag();
        if !access.is_local() {
            let closed = QpMemoryRights {
                requester_access: others,
                ..qp
            };
            let denied = authorize(&region, at, access, &closed);
            assert_eq!(denied, Err(AccessDenied::QueuePairAccess), "{access:?}");
        }
        if access != Access::LocalRead {
            let closed = RegionRights {
                access: others,
                ..region
            };
            let denied = authorize(&closed, at, access, &qp);
            assert_eq!(denied, Err(AccessDenied::RegionAccess), "{access:?}");
        }
        let stranger = QpMemoryRights {
            pd_number: PD + 1,
            ..qp
        };
        assert_eq!(
            authorize(&region, at, access, &stranger),
            Err(AccessDenied::WrongPdOrQp),
            "{access:?}"
        );
        for (addr, len) in [
            (region.start - 1, 8),
            (region.start + 57, 8),
            (region.start + 64, 1),
            (region.start + 65, 0),
            (region.start, 65),
            (region.start, u64::MAX),
            (region.start + 8, u64::MAX - region.start),
            (u64::MAX - 7, 16),
            (0, region.start + 8),
        ] {
            let denied = authorize(&region, (addr, len), access, &qp);
            assert_eq!(
                denied,
                Err(AccessDenied::OutOfRange),
                "{access:?} {addr:#x} {len:#x}"
            );
        }
    }
}

#[test]
fn a_window_admits_whom_it_is_for_and_no_sge() {
    let others = QpMemoryRights {
        requester_access: u32::MAX,
        pd_number: PD + 1,
        qpn: QPN + 1,
    };
    for access in ALL {
        let (region, qp) = good(access);
        let with = |owner| RegionRights { owner, ..region };
        let ask = |region: &RegionRights, qp: &QpMemoryRights| {
            authorize_region(region, access, qp).map(|_| ())
        };
        let remotely = if access.is_local() {
            Err(AccessDenied::WrongPdOrQp)
        } else {
            Ok(())
        };
        let one = with(OwningPdOrQp::window_type_1(PD));
        assert_eq!(ask(&one, &qp), remotely, "{access:?}");
        assert_eq!(ask(&one, &QpMemoryRights { qpn: QPN + 1, ..qp }), remotely);
        assert_eq!(ask(&one, &others), Err(AccessDenied::WrongPdOrQp));
        let two = with(OwningPdOrQp::window_type_2(QPN));
        assert_eq!(ask(&two, &qp), remotely, "{access:?}");
        assert_eq!(
            ask(&two, &QpMemoryRights { qpn: QPN + 1, ..qp }),
            Err(AccessDenied::WrongPdOrQp)
        );
        assert_eq!(ask(&two, &others), Err(AccessDenied::WrongPdOrQp));
        // A protection domain number never matches a queue pair number.
        assert_eq!(
            ask(&with(OwningPdOrQp::window_type_2(PD)), &qp),
            Err(AccessDenied::WrongPdOrQp)
        );
        assert_eq!(
            ask(&with(OwningPdOrQp::window_type_1(QPN)), &qp),
            Err(AccessDenied::WrongPdOrQp)
        );
        let none = QpMemoryRights {
            pd_number: OwningPdOrQp::NO_DOMAIN,
            ..qp
        };
        for owner in [
            one.owner,
            OwningPdOrQp::region_in_pd(PD),
            OwningPdOrQp::region_in_pd(OwningPdOrQp::PD_NUMBER_LIMIT - 1),
            OwningPdOrQp::implicit_odp_region_in_pd(OwningPdOrQp::PD_NUMBER_LIMIT - 1),
            OwningPdOrQp::window_type_1(OwningPdOrQp::PD_NUMBER_LIMIT - 1),
            OwningPdOrQp::window_type_2(0x00ff_ffff),
        ] {
            assert_eq!(
                ask(&with(owner), &none),
                Err(AccessDenied::WrongPdOrQp),
                "{owner:?}"
            );
        }
    }
}

#[test]
fn the_whole_address_space_is_for_its_domain_and_on_demand() {
    for access in ALL {
        let (region, qp) = good(access);
        let whole = RegionRights {
            start: 0,
            len: u64::MAX,
            owner: OwningPdOrQp::implicit_odp_region_in_pd(PD),
            ..region
        };
        let permitted = authorize(&whole, (1 << 40, 1 << 30), access, &qp).unwrap();
        assert!(permitted.is_in_whole_address_space_region());
        assert_eq!(permitted.offset(), 1 << 40);
        let stranger = QpMemoryRights {
            pd_number: PD + 1,
            ..qp
        };
        assert_eq!(
            authorize(&whole, (0, 1), access, &stranger),
            Err(AccessDenied::WrongPdOrQp)
        );
    }
}

#[test]
fn an_owner_is_its_word() {
    for (owner, number) in [
        (OwningPdOrQp::region_in_pd(PD), Some(PD)),
        (OwningPdOrQp::implicit_odp_region_in_pd(PD), Some(PD)),
        (OwningPdOrQp::window_type_1(PD), Some(PD)),
        (OwningPdOrQp::window_type_2(QPN), None),
    ] {
        assert_eq!(OwningPdOrQp::from_word(owner.to_word()), owner);
        assert_eq!(owner.pd_number(), number, "{owner:?}");
        if number.is_some() {
            assert_eq!(owner.with_pd_number(9).pd_number(), Some(9));
            assert_eq!(owner.with_pd_number(9).with_pd_number(PD), owner);
        }
    }
}

#[test]
fn parts_are_of_the_whole() {
    let (region, qp) = good(Access::LocalRead);
    let all = authorize(&region, (region.start + 8, 10), Access::LocalRead, &qp).unwrap();
    let bounds = |at: PermittedRange| (at.offset(), at.len());
    for (n, front, back) in [
        (0, (8, 0), (8, 10)),
        (4, (8, 4), (12, 6)),
        (10, (8, 10), (18, 0)),
        (u64::MAX, (8, 10), (18, 0)),
    ] {
        let parts = all.split_at(n);
        assert_eq!((bounds(parts.0), bounds(parts.1)), (front, back));
    }
    let grant = authorize_region(&region, Access::LocalRead, &qp).unwrap();
    assert_eq!(bounds(grant.permit_whole()), (0, 64));
    assert!(all.split_at(0).0.is_empty());
}

#[test]
fn nothing_grants_no_byte() {
    for addr in [0, 1, u64::MAX - 1, u64::MAX] {
        assert_eq!(
            RegionGrant::NOTHING.permit_range(addr, 1),
            Err(AccessDenied::OutOfRange)
        );
    }
}

/// Returns numbers near `of` and near the limits of the number type.
fn near(of: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        (0u64..200).prop_map(move |n| of.wrapping_add(n).wrapping_sub(100)),
        0u64..200,
        (0u64..200).prop_map(|n| u64::MAX - n),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The range check has the same result as a check with numbers that do not overflow.
    #[test]
    fn a_range_lies_within_or_is_denied(
        (start, len) in (near(1 << 40), near(64)),
        (addr, n) in (near(1 << 40), near(64)),
    ) {
        let (mut region, qp) = good(Access::RemoteWrite);
        (region.start, region.len) = (start, len);
        let inside = addr >= start
            && u128::from(addr) + u128::from(n) <= u128::from(start) + u128::from(len);
        let expected = if inside { Ok((addr - start, n)) } else { Err(AccessDenied::OutOfRange) };
        let got = authorize(&region, (addr, n), Access::RemoteWrite, &qp);
        prop_assert_eq!(got.map(|p| (p.offset(), p.len())), expected);
    }

    /// An access is permitted if and only if all conditions hold.
    #[test]
    fn permitted_is_what_every_condition_allows(
        region_access in any::<u32>(),
        qp_access in any::<u32>(),
        access in prop::sample::select(ALL.to_vec()),
        domains in (1u32..4, 1u32..4),
        kind in 0..4,
        qpns in (1u32..4, 1u32..4),
    ) {
        let owner = match kind {
            0 => OwningPdOrQp::region_in_pd(domains.0),
            1 => OwningPdOrQp::implicit_odp_region_in_pd(domains.0),
            2 => OwningPdOrQp::window_type_1(domains.0),
            _ => OwningPdOrQp::window_type_2(qpns.0),
        };
        let region = RegionRights { start: 0, len: 8, access: region_access, owner };
        let qp = QpMemoryRights { requester_access: qp_access, pd_number: domains.1, qpn: qpns.1 };
        let flag = access.flag();
        let local = access.is_local();
        let expected = (local || qp_access & flag != 0)
            && (flag == 0 || region_access & flag != 0)
            && match kind {
                0 | 1 => domains.0 == domains.1,
                2 => !local && domains.0 == domains.1,
                _ => !local && qpns.0 == qpns.1,
            };
        prop_assert_eq!(authorize(&region, (0, 8), access, &qp).is_ok(), expected);
    }
}
