//! The legend: describes the lines of a trace, at the head of the trace file.

/// The text of the legend, as comment lines of a trace.
pub(super) const LEGEND: &str = "\
# One line a verb: SECONDS PID/TID VERB(ARGUMENTS) = RESULT, WHAT IT GAVE
#
# SECONDS    CLOCK_MONOTONIC: when the verb returned; of posts, when they began. Lines of different threads may be
#            out of order by as much as a verb takes.
# qp1, cq2   handles, numbered by process and kind as they were made; QPN is a queue pair's number
# ibv_…      between an rdma_… and its line also what librdmacm itself does with the verbs
# = 0        what a function of the verbs returned; an errno, or that of -1 and NULL, stands behind it in words
# rsend, …   calls of rsockets; those that found nothing (EAGAIN) have no line, as …_get_…_event
#
# post_send qp1 2/16 wr_id=7 RDMA_WRITE 64 B INLINE|SIGNALED …    the second WR of a postlist of 16, and its payload
# post_send qp1 3/16 wr_id=8 … refused: WORDS                     this WR and those behind it were not posted
# post_recv, post_srq_recv                                        the room in a RECV
# wr_complete                                                     WRs of ibv_wr_start … ibv_wr_complete
# … FLUSH 0 B to 0x7f00 rkey 0x1 length 4096 GLOBAL RANGE         what is flushed, to where (placement type), and whether
#                                                                 this range or the region (MR: selectivity level)
# poll_cq cq1 1/4 wr_id=7 SUCCESS RDMA_WRITE QPN 0x8000           the first of 4 completions; of a failed one
#                                                                 wr_id, status, QPN and vendor_err are valid
# fault 1 (RULE): OCCASION                                       a rule of --fault struck here; the line of the verb follows
# … after 12 empty polls                                          polls that found nothing since this thread's last
#                                                                 line about the CQ; for 1000, 1000000, … of them in
#                                                                 a row there is a line
";
