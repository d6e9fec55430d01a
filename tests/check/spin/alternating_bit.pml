/* Two senders and one receiver speak the alternating-bit protocol over a network that loses and doubles messages, and
 * the receiver crashes. It is the model of alternating_bit.py, written a second time for Spin: both must count the same
 * distinct states.
 *
 *     spin -a alternating_bit.pml
 *     gcc -O1 -DSAFETY -DNOREDUCE -DNOFAIR -DVECTORSZ=256 -o pan pan.c
 *     ./pan -m100000            # "states, stored" is the number to compare
 *
 * How the two correspond
 *
 *     turn[i], left[i]        fields `bit` and `left` of the role Sender of process s<i>; its timer is set while left > 0
 *     expected[i]             the receiver's field and its disk, which it persists before it answers
 *     data0[i], data1[i]      the message s<i> > r Data(bit=0), Data(bit=1) is in flight
 *     ack0[i], ack1[i]        the message r > s<i> Ack(bit=0), Ack(bit=1) is in flight
 *     up                      the receiver's process is up
 *     loss, doubling, ...     what is left of each fault budget
 *
 * The network is a bag in which a message is at most once, so one boolean per message is exact. Each option of the loop
 * is one action of the engine and one d_step here: no state in the middle of a step is stored, and the only control
 * location is the loop's head.
 */

#define VALUES 3

byte turn[2] = 0;
byte left[2] = VALUES;
byte expected[2] = 0;
bool data0[2] = true; /* both senders have sent when the run begins */
bool data1[2] = false;
bool ack0[2] = false;
bool ack1[2] = false;
bool up = true;
byte loss = 2;
byte doubling = 1;
byte crash = 2;
byte restart = 2;
byte early = 1;

#define SENT (data0[0] || data0[1] || data1[0] || data1[1])
#define ANSWERED (ack0[0] || ack0[1] || ack1[0] || ack1[1])
#define DELIVERABLE ((up && SENT) || ANSWERED) /* while it holds, time does not pass */

/* s<i> sends what it has to send now. */
inline send_data(i) {
    if
    :: turn[i] == 0 -> data0[i] = true
    :: else -> data1[i] = true
    fi
}

/* The receiver takes Data(b) of s<i>: it persists the turn if it is new, and answers. */
inline take_data(i, b, answer) {
    if
    :: expected[i] == b -> expected[i] = 1 - b
    :: else -> skip
    fi;
    answer = true
}

/* s<i> takes Ack(b). */
inline take_ack(i, b) {
    if
    :: left[i] > 0 && turn[i] == b ->
        left[i]--;
        turn[i] = 1 - b;
        if
        :: left[i] > 0 -> send_data(i)
        :: else -> skip
        fi
    :: else -> skip
    fi
}

#define ON_MESSAGE(i, b, data, ack) \
    :: d_step { up && data[i] -> data[i] = false; take_data(i, b, ack[i]) }                  /* deliver */ \
    :: d_step { ack[i] -> ack[i] = false; take_ack(i, b) }                                   /* deliver */ \
    :: d_step { loss > 0 && data[i] -> loss--; data[i] = false }                             /* lose */ \
    :: d_step { loss > 0 && ack[i] -> loss--; ack[i] = false }                               /* lose */ \
    :: d_step { doubling > 0 && up && data[i] -> doubling--; take_data(i, b, ack[i]) }       /* duplicate */ \
    :: d_step { doubling > 0 && ack[i] -> doubling--; take_ack(i, b) }                       /* duplicate */ \
    :: d_step { crash > 0 && up && data[i] -> crash--; up = false; data[i] = false }         /* crash_in r 0 */ \
    :: d_step { crash > 0 && up && data[i] && expected[i] == b ->                            /* crash_in r 1 */ \
                crash--; up = false; data[i] = false; expected[i] = 1 - b }

#define ON_TIMER(i) \
    :: d_step { left[i] > 0 && !DELIVERABLE -> send_data(i) }                                /* timer */ \
    :: d_step { early > 0 && left[i] > 0 && DELIVERABLE -> early--; send_data(i) }           /* early_timer */

init {
end:
    do
    ON_MESSAGE(0, 0, data0, ack0)
    ON_MESSAGE(0, 1, data1, ack1)
    ON_MESSAGE(1, 0, data0, ack0)
    ON_MESSAGE(1, 1, data1, ack1)
    ON_TIMER(0)
    ON_TIMER(1)
    :: d_step { crash > 0 && up -> crash--; up = false }                                     /* crash r */
    :: d_step { restart > 0 && !up -> restart--; up = true }                                 /* restart r */
    od
}
