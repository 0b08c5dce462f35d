//! The devices that the plugin shows to NCCL: each active port of the provider.

use std::ffi::CString;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Mutex;

use collective::Config;
use verbs::{Access, Context, Gid, MemoryRegion, PortAttr, PortState, ProtectionDomain, Provider};

/// Environment variable: the provider, `softnic` (the default) or `system`.
const PROVIDER_ENV_VAR: &str = "VERBATIM_PROVIDER";
/// Environment variable: the queue pairs of a connection, 1 to 16.
const LANES_ENV_VAR: &str = "VERBATIM_COLLECTIVE_LANES";
/// Environment variable: the IP address at which receivers listen, if not the address of the port's
/// GID.
const LISTEN_ADDRESS_ENV_VAR: &str = "VERBATIM_COLLECTIVE_ADDRESS";

/// An active port.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: CString,
    pub(crate) pci_path: Option<CString>,
    pub(crate) guid: u64,
    pub(crate) port_num: u8,
    pub(crate) speed_mbps: i32,
    pub(crate) max_comms: i32,
    pub(crate) pd: ProtectionDomain,
    pub(crate) config: Config,
    /// The address at which receivers listen.
    pub(crate) listen_addr: IpAddr,
    /// The buffer of an empty receive, for which NCCL names no memory.
    pub(crate) empty_receive_buffer: MemoryRegion,
}

/// The devices, once found. They stay open, since NCCL unloads and reloads the plugin with its
/// communicators.
static DEVICES: Mutex<Vec<&'static Device>> = Mutex::new(Vec::new());

/// Finds the devices, unless already known; returns their number.
///
/// # Errors
/// The reason why no device can be used.
pub(crate) fn find_and_count_devices() -> Result<usize, String> {
    let mut devices = DEVICES.lock().map_err(|e| e.to_string())?;
    if devices.is_empty() {
        *devices = open_all_devices()?;
    }
    Ok(devices.len())
}

/// Returns the device of a number.
///
/// # Errors
/// No device has this number.
pub(crate) fn device_by_number(number: i32) -> Result<&'static Device, String> {
    let devices = DEVICES.lock().map_err(|e| e.to_string())?;
    let device = usize::try_from(number).ok().and_then(|n| devices.get(n));
    device.copied().ok_or_else(|| {
        format!(
            "there is no device {number}: there are {} of them, from 0",
            devices.len()
        )
    })
}

fn open_all_devices() -> Result<Vec<&'static Device>, String> {
    let name = std::env::var(PROVIDER_ENV_VAR).unwrap_or_else(|_| "softnic".to_owned());
    let provider =
        Provider::by_name(&name).map_err(|e| format!("{PROVIDER_ENV_VAR}={name}: {e}"))?;
    let config = config_from_environment()?;
    let mut found = Vec::new();
    for device in provider.devices().map_err(|e| e.to_string())? {
        let ports = open_and_query_ports(&device).map_err(|e| format!("{}: {e}", device.name()))?;
        for (port, context, number) in ports {
            if port.state == PortState::Active {
                let config = Config {
                    port_num: number,
                    ..config
                };
                found.push(open_port_as_device(&context, device.guid(), &port, config)?);
            }
        }
    }
    if found.is_empty() {
        return Err(format!(
            "provider {name} has no device with an active port: `verbatim devices` lists what there is"
        ));
    }
    Ok(found)
}

/// Opens a device; returns each port with the context and the port's number.
fn open_and_query_ports(
    device: &verbs::Device,
) -> Result<Vec<(PortAttr, Context, u8)>, verbs::VerbError> {
    let context = device.open()?;
    let ports = context.query_device()?.phys_port_cnt;
    (1..=ports)
        .map(|port| Ok((context.query_port(port)?, context.clone(), port)))
        .collect()
}

fn config_from_environment() -> Result<Config, String> {
    let Ok(lanes) = std::env::var(LANES_ENV_VAR) else {
        return Ok(Config::default());
    };
    match lanes.parse() {
        Ok(lanes @ 1..=16) => Ok(Config {
            lane_count: lanes,
            ..Config::default()
        }),
        _ => Err(format!(
            "{LANES_ENV_VAR}={lanes}: a connection has 1 to 16 queue pairs"
        )),
    }
}

fn open_port_as_device(
    context: &Context,
    guid: u64,
    port: &PortAttr,
    config: Config,
) -> Result<&'static Device, String> {
    let name = context.device_name();
    let pd = context.alloc_pd().map_err(|e| format!("{name}: {e}"))?;
    let nothing = pd.alloc(8, Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let no = |e: verbs::QueryError| format!("{name}: {e}");
    let limits = context.query_device().map_err(no)?;
    let index = context.default_gid_index(config.port_num).map_err(no)?;
    let gid = context
        .gid(config.port_num, index.into())
        .unwrap_or_default();
    let gbps = port.lane_gbps().zip(port.lanes());
    let mbps = gbps.map_or(10_000.0, |(gbps, lanes)| 1000.0 * gbps * f32::from(lanes));
    #[expect(clippy::cast_possible_truncation, reason = "below 2^31")]
    let speed_mbps = mbps as i32;
    let pci = context.provider().name() == "system";
    let pci = pci.then(|| std::fs::canonicalize(format!("/sys/class/infiniband/{name}/device")));
    let pci = pci.and_then(Result::ok);
    Ok(Box::leak(Box::new(Device {
        name: CString::new(name).map_err(|e| e.to_string())?,
        pci_path: pci
            .and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok()),
        guid,
        port_num: config.port_num,
        speed_mbps,
        max_comms: i32::try_from(limits.max_qp).unwrap_or(i32::MAX) / 16,
        empty_receive_buffer: nothing.map_err(|e| format!("{name}: {e}"))?,
        pd,
        config,
        listen_addr: listen_address(gid)?,
    })))
}

/// Returns the address at which receivers listen: the configured one, the port's own, or else
/// loopback.
fn listen_address(gid: Gid) -> Result<IpAddr, String> {
    if let Ok(text) = std::env::var(LISTEN_ADDRESS_ENV_VAR) {
        return text
            .parse()
            .map_err(|e| format!("{LISTEN_ADDRESS_ENV_VAR}={text}: {e}"));
    }
    let ip = Ipv6Addr::from(gid.0).to_canonical();
    let here = TcpListener::bind(SocketAddr::new(ip, 0)).is_ok();
    let usable = !ip.is_unspecified() && !gid.is_link_local() && here;
    Ok(if usable {
        ip
    } else {
        IpAddr::from([127, 0, 0, 1])
    })
}
