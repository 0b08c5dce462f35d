//! The devices of a provider.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, OnceLock};

use verbs_abi as abi;

use crate::attr::{NodeType, TransportType};
use crate::context::{Context, ContextInner};
use crate::error::{DeviceError, OpenError, invalid_input, last_error};
use crate::provider::Provider;

/// A device of a provider.
#[derive(Clone)]
pub struct Device {
    device_list: Arc<DeviceList>,
    raw: *mut abi::ibv_device,
    name: String,
    guid: u64,
    node_type: NodeType,
    transport_type: TransportType,
}

/// The list that `ibv_get_device_list` returned, which keeps its devices alive.
struct DeviceList {
    provider: Provider,
    raw: *mut *mut abi::ibv_device,
}

// SAFETY: the list is only read, and freed by the last owner.
unsafe impl Send for DeviceList {}
// SAFETY: as for Send.
unsafe impl Sync for DeviceList {}
// SAFETY: `raw` points at a device of the list that `list` keeps alive; devices are read only.
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

impl Drop for DeviceList {
    fn drop(&mut self) {
        // SAFETY: the list came from ibv_get_device_list of this table and no `Device` is left.
        unsafe { (self.provider.symbols().ibv_free_device_list)(self.raw) };
    }
}

impl Device {
    fn list_devices(provider: Provider) -> Result<Vec<Self>, DeviceError> {
        let symbols = provider.symbols();
        let mut num = 0;
        // SAFETY: `num` is writable.
        let raw = unsafe { (symbols.ibv_get_device_list)(&mut num) };
        if raw.is_null() {
            let source = last_error();
            // The system has no RDMA subsystem loaded, so no devices.
            return if source.raw_os_error() == Some(libc::ENOSYS) {
                Ok(Vec::new())
            } else {
                let verb = "ibv_get_device_list";
                Err(DeviceError::Refused { verb, source })
            };
        }
        let list = Arc::new(DeviceList { provider, raw });
        let num = usize::try_from(num).unwrap_or(0);
        let device = |i| {
            // SAFETY: the list has `num` entries, each of which is valid while `list` lives.
            unsafe {
                let raw = *list.raw.add(i);
                let name = CStr::from_ptr((symbols.ibv_get_device_name)(raw))
                    .to_string_lossy()
                    .into_owned();
                let guid = u64::from_be((symbols.ibv_get_device_guid)(raw));
                let node_type = NodeType::from_raw((*raw).node_type.cast_unsigned());
                let transport_type = (*raw).transport_type.cast_unsigned();
                Self {
                    transport_type: TransportType::from_raw(transport_type),
                    device_list: Arc::clone(&list),
                    raw,
                    name,
                    guid,
                    node_type,
                }
            }
        };
        Ok((0..num).map(device).collect())
    }

    /// Returns the device's name, such as `softnic0` or `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the device's globally unique identifier, in host order.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Returns the kind of node.
    pub fn node_type(&self) -> NodeType {
        self.node_type
    }

    /// Returns the transport that carries the device's messages, as `ibv_devinfo` names it.
    pub fn transport_type(&self) -> TransportType {
        self.transport_type
    }

    /// Returns the provider of the device.
    pub fn provider(&self) -> Provider {
        self.device_list.provider
    }

    /// Opens the device.
    ///
    /// # Errors
    /// - [`OpenError::NotPermitted`] (`EACCES`, `EPERM`): the process may not use the device.
    /// - [`OpenError::Refused`] (any other errno).
    pub fn open(&self) -> Result<Context, OpenError> {
        let provider = self.device_list.provider;
        let symbols = provider.symbols();
        // SAFETY: the device is on a list that is still alive.
        let raw = unsafe { (symbols.ibv_open_device)(self.raw) };
        if raw.is_null() {
            let device = self.name.clone();
            return Err(OpenError::of("ibv_open_device", device, last_error()));
        }
        let inner = ContextInner {
            provider,
            symbols,
            raw,
            name: self.name.clone(),
            capabilities: OnceLock::new(),
        };
        Ok(Context {
            inner: Arc::new(inner),
        })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("provider", &self.provider().name())
            .field("name", &self.name)
            .field("guid", &format_args!("{:#018x}", self.guid))
            .field("node_type", &self.node_type)
            .finish()
    }
}

impl Provider {
    /// Returns the provider's devices. An empty list is no error.
    ///
    /// # Errors
    /// [`DeviceError::Refused`] (any errno), for example because the software NIC's fabric cannot be joined.
    pub fn devices(&self) -> Result<Vec<Device>, DeviceError> {
        Device::list_devices(*self)
    }

    /// Returns the device called `name`, or the first one.
    ///
    /// # Errors
    /// - [`DeviceError::NoSuchDevice`]: the message lists the existing devices.
    /// - As [`devices`](Self::devices).
    pub fn device(&self, name: Option<&str>) -> Result<Device, DeviceError> {
        let devices = self.devices()?;
        let there: Vec<String> = devices.iter().map(|d| d.name().to_owned()).collect();
        devices
            .into_iter()
            .find(|d| name.is_none_or(|n| d.name() == n))
            .ok_or_else(|| {
                let wanted = name.map_or("any".to_owned(), |n| format!("{n:?}"));
                let has = if there.is_empty() {
                    "none".to_owned()
                } else {
                    there.join(", ")
                };
                let provider = self.name();
                DeviceError::NoSuchDevice {
                    existing: there,
                    verb: "ibv_get_device_list",
                    source: invalid_input(format!(
                        "no such device: wanted {wanted}, provider {provider} has {has}"
                    )),
                }
            })
    }
}
