//! Tests of joining and leaving a fabric, and of unexpected files in its folder.

use super::*;
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};

fn folder() -> (tempfile::TempDir, PathBuf) {
    let tmp = tempfile::tempdir_in("/dev/shm").unwrap();
    let dir = tmp.path().join("fabric");
    (tmp, dir)
}

#[test]
fn two_members_see_each_other_and_the_last_one_leaves_nothing() {
    let (_tmp, dir) = folder();
    let a = Fabric::join_fabric(&dir).unwrap();
    let b = Fabric::join_fabric(&dir).unwrap();
    assert_ne!(a.this_process.slot, b.this_process.slot);
    let seen = a.peer(b.this_process.slot).unwrap();
    assert_eq!(seen.incarnation, b.this_process.incarnation);
    a.leave();
    assert!(b.peer(a.this_process.slot).is_none());
    b.leave();
    assert!(!dir.exists());
}

/// A program that received a QP number of another fabric must not find a queue pair with that number.
#[test]
fn fabrics_do_not_begin_with_the_same_numbers() {
    let slots: Vec<usize> = (0..4)
        .map(|_| {
            let (_tmp, dir) = folder();
            let only = Fabric::join_fabric(&dir).unwrap();
            only.leave();
            only.this_process.slot
        })
        .collect();
    assert!(slots.iter().any(|slot| *slot != slots[0]), "{slots:?}");
}

#[test]
fn a_folder_that_others_can_enter_is_refused() {
    let (_tmp, dir) = folder();
    fs::create_dir(&dir).unwrap();
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let e = Fabric::join_fabric(&dir).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("others could enter"), "{e}");
}

#[test]
fn a_file_in_the_folders_place_is_refused() {
    let (_tmp, dir) = folder();
    fs::write(&dir, "x").unwrap();
    let e = Fabric::join_fabric(&dir).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("not a folder"), "{e}");
}

#[test]
fn an_older_directory_that_nobody_uses_is_replaced() {
    let (_tmp, dir) = folder();
    let a = Fabric::join_fabric(&dir).unwrap();
    a.directory.directory().version.store(0, Ordering::Relaxed);
    let e = Fabric::join_fabric(&dir).map(|_| ()).unwrap_err();
    assert!(e.to_string().contains("different version"), "{e}");
    drop(a);
    Fabric::join_fabric(&dir).unwrap().leave();
}

#[test]
fn a_damaged_directory_is_replaced_and_foreign_files_stay() {
    let (_tmp, dir) = folder();
    DirBuilder::new().mode(0o700).create(&dir).unwrap();
    for garbage in [&b"short"[..], &[0xa5; 70_000]] {
        fs::write(dir.join("directory"), garbage).unwrap();
        fs::write(dir.join("notes.txt"), "mine").unwrap();
        let a = Fabric::join_fabric(&dir).unwrap();
        a.leave();
        assert!(dir.join("notes.txt").exists());
    }
}

#[test]
fn what_the_dead_left_is_removed_by_the_next_to_come() {
    let (_tmp, dir) = folder();
    let a = Fabric::join_fabric(&dir).unwrap();
    // The entry of a process that has ended: this pid with another start time.
    let entry = &a.directory.directory().procs[77];
    entry
        .pid
        .store(own_pid_and_random::own_pid(), Ordering::Relaxed);
    entry.start_time_ticks.store(1, Ordering::Relaxed);
    entry.incarnation.store(0x1234, Ordering::Relaxed);
    fs::write(segment_path(&dir, 0x1234), "old").unwrap();
    fs::write(wake_fifo_path(&dir, 0x9999), "killed while joining").unwrap();
    fs::write(folder::channel_fifo_path(&dir, 0x1234, 5), "old").unwrap();
    let b = Fabric::join_fabric(&dir).unwrap();
    assert!(!segment_path(&dir, 0x1234).exists());
    assert!(!wake_fifo_path(&dir, 0x9999).exists());
    assert!(!folder::channel_fifo_path(&dir, 0x1234, 5).exists());
    assert_eq!(entry.incarnation.load(Ordering::Relaxed), 0);
    a.leave();
    b.leave();
}

#[test]
fn a_peer_with_a_garbled_segment_is_not_opened() {
    let (_tmp, dir) = folder();
    let a = Fabric::join_fabric(&dir).unwrap();
    let b = Fabric::join_fabric(&dir).unwrap();
    b.this_process
        .segment
        .header()
        .magic
        .store(1, Ordering::Relaxed);
    assert!(a.peer(b.this_process.slot).is_none());
    a.leave();
    b.leave();
}

#[test]
fn peers_write_tokens_into_the_channels_of_a_process() {
    let (_tmp, dir) = folder();
    let a = Fabric::join_fabric(&dir).unwrap();
    let b = Fabric::join_fabric(&dir).unwrap();
    let (one, other) = (a.make_channel().unwrap(), a.make_channel().unwrap());
    assert_ne!(one.number(), other.number());
    let seen = b.peer(a.this_process.slot).unwrap();
    assert!(
        seen.open_completion_channel(one.number())
            .unwrap()
            .write_token(3)
    );
    assert!(one.put_token(4));
    assert_eq!((one.token_count(), other.token_count()), (2, 0));
    assert_eq!(
        [
            one.take_token_cq_index(),
            one.take_token_cq_index(),
            one.take_token_cq_index()
        ],
        [Some(3), Some(4), None]
    );
    assert!(
        seen.open_completion_channel(0).is_none() && seen.open_completion_channel(77).is_none()
    );

    // The FIFO is full: a further write returns false and does not block.
    let bell = seen.open_completion_channel(one.number()).unwrap();
    let room = (0..1 << 20).find(|_| !bell.write_token(9)).unwrap();
    assert!(!one.put_token(9));
    assert_eq!(one.token_count(), room);
    assert_eq!(one.take_token_cq_index(), Some(9));

    // A channel number is never reused.
    let number = one.number();
    drop(one);
    assert_ne!(a.make_channel().unwrap().number(), number);
    // A write to a FIFO without a reader raises no SIGPIPE.
    while bell.write_token(1) {}
    a.leave();
    drop(other);
    b.leave();
    assert!(!dir.exists());
}

#[test]
fn a_file_in_the_place_of_a_channel_gets_no_token() {
    let (_tmp, dir) = folder();
    let a = Fabric::join_fabric(&dir).unwrap();
    let path = folder::channel_fifo_path(&dir, a.this_process.incarnation, 1);
    fs::write(&path, "").unwrap();
    assert!(a.this_process.open_completion_channel(1).is_none());
    assert_eq!(fs::read(&path).unwrap(), b"");
    a.made_channel_count.store(1, Ordering::Relaxed);
    a.leave();
    assert!(!dir.exists());
}

/// Every signal interrupts `fallocate(2)`, but a program with a fast timer must not see an error
/// for lack of memory.
#[test]
fn memory_is_reserved_under_a_fast_timer() {
    extern "C" fn tick(_: libc::c_int) {}
    const BYTES: usize = 64 << 20;
    let every = libc::timeval {
        tv_sec: 0,
        tv_usec: 200,
    };
    let (_tmp, dir) = folder();
    DirBuilder::new().mode(0o700).create(&dir).unwrap();
    let file = File::create_new(dir.join("file")).unwrap();
    // The reservation runs in a child process, so that the timer's signals reach no other test.
    // SAFETY: the child makes only calls that a fork of a threaded process may make: system calls, and no
    // allocation on success.
    let status = unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::signal(libc::SIGALRM, tick as *const () as usize);
            let timer = libc::itimerval {
                it_interval: every,
                it_value: every,
            };
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
            libc::_exit(
                segment::allocate_file_blocks(&file, 0, BYTES)
                    .is_err()
                    .into(),
            );
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
        status
    };
    assert_eq!(status, 0);
    assert_eq!(file.metadata().unwrap().len(), BYTES as u64);
}

#[test]
fn what_is_not_used_of_a_segment_cannot_be_read() {
    let file = tempfile::tempfile().unwrap();
    let segment = Segment::create(&file).unwrap();
    // `/proc` lists the segment as an unlinked file; no other mapping of this test is as large.
    let readable = || -> usize {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()).to_string();
        let ours = maps
            .lines()
            .map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
        ours.filter(|words| words[1] == "rw-s" && words[4] == inode)
            .map(|words| {
                let (from, to) = words[0].split_once('-').unwrap();
                let address = |text| usize::from_str_radix(text, 16).unwrap();
                address(to) - address(from)
            })
            .sum()
    };
    assert!((ARENA_AT..ARENA_AT + (8 << 20)).contains(&readable()));
    let far = 1 << 30;
    assert_eq!(
        segment
            .ring_header(far)
            .unwrap()
            .consumer_head
            .load(Ordering::Relaxed),
        0
    );
    assert!(readable() > far);
    let end = SEGMENT_BYTES - size_of::<RingHeader>();
    assert!(segment.ring_header(end).is_some());
    assert_eq!(readable(), SEGMENT_BYTES);
}
