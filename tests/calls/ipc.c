// The information that each command returns about System V queues, semaphores and segments.
// Levels: translated interpreted (process IDs and times in it are the host's; a simulated process has its own)
// Source: msgctl(2), semctl(2), shmctl(2); Linux include/uapi/linux/{msg,sem,shm}.h.
#include "say.h"
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/time.h>
#include <time.h>

#ifndef MSG_STAT_ANY
#define MSG_STAT_ANY 13
#endif
#ifndef SEM_STAT_ANY
#define SEM_STAT_ANY 20
#endif
#ifndef SHM_STAT_ANY
#define SHM_STAT_ANY 15
#endif

union semun { int val; struct semid_ds *buf; unsigned short *array; struct seminfo *info; };

// The index of `id` in the kernel's table. `at` looks up the ID at an index.
static int index_of(int id, int highest, int (*at)(int index)) {
    for (int index = 0; index <= highest; index++)
        if (at(index) == id) return index;
    return -1;
}

static struct msqid_ds queue;
static int queue_at(int index) { return msgctl(index, MSG_STAT, &queue); }

static void queues(void) {
    struct { long type; char text[8]; } message = {3, "message"};
    struct msginfo info;
    memset(&info, 0, sizeof info);
    int id = msgget(IPC_PRIVATE, 0600 | IPC_CREAT);
    SAY(msgsnd(id, &message, 8, 0));
    SAY(msgctl(id, IPC_STAT, &queue));
    SAY(queue.msg_qnum);
    SAY(queue.msg_cbytes);
    SAY(queue.msg_perm.mode);
    SAY(queue.msg_lspid == getpid());
    WELL(msgctl(0, IPC_INFO, (void *)&info));
    SAY(info.msgmax);
    SAY(info.msgmnb);
    int highest = msgctl(0, MSG_INFO, (void *)&info);
    SAY(highest >= 0);
    SAY(info.msgpool > 0 && info.msgmap > 0 && info.msgtql >= 8);
    int index = index_of(id, highest, queue_at);
    SAY(index >= 0);
    memset(&queue, 0, sizeof queue);
    SAY(msgctl(index, MSG_STAT, &queue) == id);
    SAY(queue.msg_qnum);
    SAY(msgctl(index, MSG_STAT_ANY, &queue) == id);
    queue.msg_qbytes = 64;
    SAY(msgctl(id, IPC_SET, &queue));
    SAY(msgctl(id, IPC_STAT, &queue));
    SAY(queue.msg_qbytes);
    SAY(msgctl(id, IPC_STAT, (void *)8));
    SAY(msgctl(id, 14, &queue));
    SAY(msgctl(id, 99, &queue));
    SAY(msgctl(id, IPC_RMID, NULL));
    SAY(msgctl(id, IPC_STAT, &queue));
}

static struct semid_ds semaphores;
static int semaphores_at(int index) { return semctl(index, 0, SEM_STAT, (union semun){.buf = &semaphores}); }

static void sets(void) {
    struct seminfo info;
    memset(&info, 0, sizeof info);
    int id = semget(IPC_PRIVATE, 3, 0600 | IPC_CREAT);
    unsigned short values[] = {4, 5, 6, 99};
    SAY(semctl(id, 0, SETALL, (union semun){.array = values}));
    SAY(semctl(id, 1, SETVAL, (union semun){.val = 9}));
    memset(values, 0, sizeof values);
    SAY(semctl(id, 0, GETALL, (union semun){.array = values}));
    SAY(values[0] * 1000 + values[1] * 100 + values[2] * 10 + values[3]);
    SAY(semctl(id, 1, GETVAL));
    struct sembuf down = {2, -1, 0};
    SAY(semop(id, &down, 1));
    SAY(semctl(id, 2, GETVAL));
    SAY(semctl(id, 2, GETPID) == getpid());
    SAY(semctl(id, 2, GETNCNT));
    SAY(semctl(id, 2, GETZCNT));
    SAY(semctl(id, 0, IPC_STAT, (union semun){.buf = &semaphores}));
    SAY(semaphores.sem_nsems);
    SAY(semaphores.sem_perm.mode);
    SAY(labs(time(NULL) - semaphores.sem_otime) < 9);
    SAY(labs(time(NULL) - semaphores.sem_ctime) < 9);
    WELL(semctl(0, 0, IPC_INFO, (union semun){.info = &info}));
    SAY(info.semmsl);
    SAY(info.semopm);
    int highest = semctl(0, 0, SEM_INFO, (union semun){.info = &info});
    SAY(info.semusz > 0 && info.semaem >= 3);
    int index = index_of(id, highest, semaphores_at);
    SAY(index >= 0);
    memset(&semaphores, 0, sizeof semaphores);
    SAY(semctl(index, 0, SEM_STAT, (union semun){.buf = &semaphores}) == id);
    SAY(semaphores.sem_nsems);
    SAY(semctl(index, 0, SEM_STAT_ANY, (union semun){.buf = &semaphores}) == id);
    semaphores.sem_perm.mode = 0640;
    SAY(semctl(id, 0, IPC_SET, (union semun){.buf = &semaphores}));
    SAY(semctl(id, 0, IPC_STAT, (union semun){.buf = &semaphores}));
    SAY(semaphores.sem_perm.mode);
    SAY(semctl(id, 0, IPC_STAT, (union semun){.buf = (void *)8}));
    SAY(semctl(id, 0, GETALL, (union semun){.array = (void *)8}));
    SAY(semctl(id, 5, GETVAL));
    SAY(semctl(id, 0, 99));
    SAY(semctl(id, 0, IPC_RMID));
    SAY(semctl(id, 0, GETVAL));
}

static struct shmid_ds segment;
static int segment_at(int index) { return shmctl(index, SHM_STAT, &segment); }

static void segments(void) {
    struct shminfo limits;
    struct shm_info info;
    memset(&limits, 0, sizeof limits);
    memset(&info, 0, sizeof info);
    int id = shmget(IPC_PRIVATE, 1 << 16, 0600 | IPC_CREAT);
    char *at = shmat(id, NULL, 0);
    at[0] = 1;
    SAY(shmctl(id, IPC_STAT, &segment));
    SAY(segment.shm_segsz);
    SAY(segment.shm_nattch);
    SAY(segment.shm_perm.mode);
    WELL(shmctl(0, IPC_INFO, (void *)&limits));
    SAY(limits.shmmni);
    SAY(limits.shmmin);
    int highest = shmctl(0, SHM_INFO, (void *)&info);
    SAY(info.used_ids >= 1);
    int index = index_of(id, highest, segment_at);
    SAY(index >= 0);
    SAY(shmctl(index, SHM_STAT, &segment) == id);
    SAY(segment.shm_segsz);
    SAY(shmctl(index, SHM_STAT_ANY, &segment) == id);
    SAY(shmctl(id, SHM_LOCK, NULL));
    SAY(shmctl(id, SHM_UNLOCK, NULL));
    segment.shm_perm.mode = 0640;
    SAY(shmctl(id, IPC_SET, &segment));
    SAY(shmctl(id, IPC_STAT, (void *)8));
    SAY(shmctl(id, 99, &segment));
    SAY(shmctl(id, IPC_RMID, NULL));
    SAY(shmctl(id, IPC_STAT, &segment));
    SAY((segment.shm_perm.mode & 0777) == 0640);
    SAY(shmdt(at));
    SAY(shmctl(id, IPC_STAT, &segment));
}

int main(void) {
    queues();
    sets();
    segments();
    return 0;
}
