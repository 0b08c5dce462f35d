//! Address handles and multicast groups: `ibv_create_ah(3)`, `ibv_attach_mcast(3)`.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs_abi::*;

use super::context::device_of;
use super::edge::{Grh, In, InConst, OrMinusOne, Out};
use crate::ah::Ah;
use crate::capabilities::OptionalFeature;
use crate::device::{self, Device, Port};
use crate::live_handles;
use crate::multicast::MulticastGroup;
use crate::pd::Pd;
use crate::qp::Qp;
use crate::qp_attributes::QpType;
use crate::why;

pub(super) fn create_ah(pd: *mut ibv_pd, attr: In<'_, ibv_ah_attr>) -> Result<*mut ibv_ah, c_int> {
    new_ah(pd, attr.get()?)
}

fn new_ah(pd: *mut ibv_pd, attr: &ibv_ah_attr) -> Result<*mut ibv_ah, c_int> {
    let pd = Pd::find_usable(pd).ok_or(libc::EINVAL)?;
    let port = find_port(pd.context.device, attr.port_num)?;
    port.check_ah(attr)?;
    Ok(live_handles::make_handle(Arc::new(Ah::new(pd, port, attr))))
}

/// The port that an address vector names.
fn find_port(device: &'static Device, port_num: u8) -> Result<&'static Port, c_int> {
    device.port(port_num).map_err(|_| {
        why::einval_because(|| {
            format!(
                "ah_attr.port_num is {port_num}, and {} has ports 1 to {}",
                device.name,
                device.port_count()
            )
        })
    })
}

pub(super) fn destroy_ah(handle: *mut ibv_ah) -> Result<(), c_int> {
    let ah = live_handles::take_back_handle::<Ah>(handle).ok_or(libc::EINVAL)?;
    ah.held_pd.remove_user();
    Ok(())
}

pub(super) fn init_ah_from_wc(
    context: *mut ibv_context,
    port_num: u8,
    wc: In<'_, ibv_wc>,
    grh: Grh,
    attr: Out<'_, ibv_ah_attr>,
) -> OrMinusOne {
    let made = || {
        let port = device_of(context)?.1.port(port_num)?;
        let (wc, place) = (wc.get()?, attr.get()?);
        place.write(device::init_ah_from_wc(port, wc, &grh.0)?);
        Ok(0)
    };
    OrMinusOne(made())
}

pub(super) fn create_ah_from_wc(
    handle: *mut ibv_pd,
    wc: In<'_, ibv_wc>,
    grh: Grh,
    port_num: u8,
) -> Result<*mut ibv_ah, c_int> {
    let pd = live_handles::find_object::<Pd>(handle).ok_or(libc::EINVAL)?;
    let port = device_of(pd.context.handle())?.1.port(port_num)?;
    let attr = device::init_ah_from_wc(port, wc.get()?, &grh.0)?;
    new_ah(handle, &attr)
}

pub(super) fn attach_mcast(
    qp: *mut ibv_qp,
    gid: InConst<'_, ibv_gid>,
    _lid: u16,
) -> Result<(), c_int> {
    let (qp, group) = qp_and_multicast_group(qp, gid)?;
    let nic = qp.nic;
    nic.capabilities
        .require_feature(OptionalFeature::Multicast)?;
    if nic
        .multicast_attachments
        .attach(&nic.fabric, qp.index, group)?
    {
        qp.multicast_group_or_flow_count
            .fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

pub(super) fn detach_mcast(
    qp: *mut ibv_qp,
    gid: InConst<'_, ibv_gid>,
    _lid: u16,
) -> Result<(), c_int> {
    let (qp, group) = qp_and_multicast_group(qp, gid)?;
    let nic = qp.nic;
    if !nic
        .multicast_attachments
        .detach(&nic.fabric, qp.index, group)
    {
        return Err(libc::EINVAL);
    }
    qp.multicast_group_or_flow_count
        .fetch_sub(1, Ordering::Relaxed);
    Ok(())
}

/// Returns the queue pair and the group of `ibv_attach_mcast(3)`: "only QPs of transport service type IBV_QPT_UD may be
/// attached to multicast groups". Groups are told apart by their GIDs alone.
fn qp_and_multicast_group(
    qp: *mut ibv_qp,
    gid: InConst<'_, ibv_gid>,
) -> Result<(Arc<Qp>, MulticastGroup), c_int> {
    live_handles::find_object::<Qp>(qp)
        .filter(|qp| qp.qp_type == QpType::Ud)
        .zip(
            gid.optional()
                .and_then(|gid| MulticastGroup::from_gid(gid.bytes())),
        )
        .ok_or(libc::EINVAL)
}
