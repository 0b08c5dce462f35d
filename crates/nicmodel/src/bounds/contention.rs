//! The throughput of cores that wait for each other.
//!
//! A core that writes to the NIC is blocked until the write is on its way. A core that adds to a shared counter is
//! blocked until it has the line. So the cores form a closed queueing network: each core works alone, then queues at
//! each shared station. Mean value analysis gives the throughput (Reiser and Lavenberg, JACM 1980); it has no
//! parameters beyond the times.

/// A station of the queueing network, shared by all cores.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueueingStation {
    /// Time for which a request occupies the station, in ns.
    pub(super) service_ns: f64,
    /// Time for which other traffic occupies the station for each request, in ns. This traffic slows the station and
    /// blocks no core.
    pub(super) background_ns: f64,
}

/// Returns the requests per ns of `cores` cores. Each core works `alone_ns` on a request between the stations.
pub(super) fn requests_per_ns(cores: u32, alone_ns: f64, stations: &[QueueingStation]) -> f64 {
    // Background traffic slows the stations in proportion to the rate, which is the result: find it by bisection.
    let (mut low, mut high) = (0.0, max_station_rate(stations));
    if stations.iter().all(|station| station.background_ns == 0.0) {
        return mean_value_analysis(cores, alone_ns, stations, 0.0);
    }
    if !high.is_finite() {
        return mean_value_analysis(cores, alone_ns, stations, 0.0);
    }
    for _ in 0..60 {
        let rate = f64::midpoint(low, high);
        if mean_value_analysis(cores, alone_ns, stations, rate) > rate {
            low = rate;
        } else {
            high = rate;
        }
    }
    low
}

/// Returns the highest possible rate, at which the busiest station is never idle.
fn max_station_rate(stations: &[QueueingStation]) -> f64 {
    let busiest = stations
        .iter()
        .map(|s| s.service_ns + s.background_ns)
        .fold(0.0, f64::max);
    1.0 / busiest
}

/// Computes the throughput by mean value analysis, with stations slowed by the background traffic of `rate` requests
/// per ns.
fn mean_value_analysis(cores: u32, alone_ns: f64, stations: &[QueueingStation], rate: f64) -> f64 {
    let slowed = |station: &QueueingStation| {
        let left = (1.0 - rate * station.background_ns).max(f64::EPSILON);
        station.service_ns / left
    };
    let service: Vec<f64> = stations.iter().map(slowed).collect();
    let mut queue = vec![0.0; service.len()];
    let mut throughput = 0.0;
    for present in 1..=cores {
        let residence = |(service, queue): (&f64, &f64)| service * (1.0 + queue);
        let times: Vec<f64> = service.iter().zip(&queue).map(residence).collect();
        let cycle = alone_ns + times.iter().sum::<f64>();
        if cycle <= 0.0 {
            return f64::INFINITY;
        }
        throughput = f64::from(present) / cycle;
        for (queue, time) in queue.iter_mut().zip(&times) {
            *queue = throughput * time;
        }
    }
    throughput
}

#[cfg(test)]
mod tests {
    use super::*;

    fn station(service_ns: f64) -> QueueingStation {
        QueueingStation {
            service_ns,
            background_ns: 0.0,
        }
    }

    #[test]
    fn one_core_waits_for_nobody() {
        let rate = requests_per_ns(1, 80.0, &[station(15.0), station(5.0)]);
        assert!((rate - 0.01).abs() < 1e-12, "{rate}");
    }

    #[test]
    fn two_cores_and_one_station_by_hand() {
        // R(1) = 10, X(1) = 1/20, Q(1) = 1/2; R(2) = 15, X(2) = 2/25.
        let rate = requests_per_ns(2, 10.0, &[station(10.0)]);
        assert!((rate - 0.08).abs() < 1e-12, "{rate}");
    }

    #[test]
    fn many_cores_keep_the_busiest_station_busy() {
        let rate = requests_per_ns(1000, 100.0, &[station(10.0), station(2.0)]);
        assert!((rate - 0.1).abs() < 1e-3, "{rate}");
        assert!(rate <= 0.1 + 1e-9, "{rate}");
    }

    #[test]
    fn a_background_takes_its_share() {
        let shared = QueueingStation {
            service_ns: 10.0,
            background_ns: 10.0,
        };
        let rate = requests_per_ns(1000, 100.0, &[shared]);
        assert!((rate - 0.05).abs() < 1e-3, "{rate}");
    }

    #[test]
    fn without_stations_cores_are_alone() {
        assert_eq!(requests_per_ns(4, 50.0, &[]), 0.08);
        assert!(requests_per_ns(4, 0.0, &[]).is_infinite());
    }
}
