/* c11_threads.c: the threads and locks of C11, implemented with POSIX threads. ThreadSanitizer
 * knows only those: a thread that librdkafka starts with thrd_create crashes under it, and accesses
 * ordered by its locks look like races. Only linked into programs for ThreadSanitizer, and found
 * there before those of the C library, whose types are the same. */
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <threads.h>
#include <time.h>

#pragma GCC visibility push(default)

_Static_assert(sizeof(mtx_t) >= sizeof(pthread_mutex_t), "the types are the same in glibc");
_Static_assert(sizeof(cnd_t) >= sizeof(pthread_cond_t), "the types are the same in glibc");

struct begun {
    thrd_start_t run;
    void *arg;
};

static void *begin(void *p)
{
    struct begun b = *(struct begun *)p;
    free(p);
    return (void *)(intptr_t)b.run(b.arg);
}

static int answer(int code)
{
    if (code == 0)
        return thrd_success;
    if (code == ETIMEDOUT)
        return thrd_timedout;
    if (code == EBUSY)
        return thrd_busy;
    return thrd_error;
}

int thrd_create(thrd_t *thread, thrd_start_t run, void *arg)
{
    struct begun *b = malloc(sizeof *b);
    if (!b)
        return thrd_nomem;
    *b = (struct begun){run, arg};
    int code = pthread_create(thread, NULL, begin, b);
    if (code != 0)
        free(b);
    return answer(code);
}

int thrd_join(thrd_t thread, int *ret)
{
    void *value = NULL;
    int code = pthread_join(thread, &value);
    if (ret)
        *ret = (int)(intptr_t)value;
    return answer(code);
}

int thrd_detach(thrd_t thread)
{
    return answer(pthread_detach(thread));
}

int mtx_init(mtx_t *m, int type)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (type & mtx_recursive)
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    int code = pthread_mutex_init((pthread_mutex_t *)m, &attr);
    pthread_mutexattr_destroy(&attr);
    return answer(code);
}

int mtx_lock(mtx_t *m)
{
    return answer(pthread_mutex_lock((pthread_mutex_t *)m));
}

int mtx_trylock(mtx_t *m)
{
    return answer(pthread_mutex_trylock((pthread_mutex_t *)m));
}

int mtx_unlock(mtx_t *m)
{
    return answer(pthread_mutex_unlock((pthread_mutex_t *)m));
}

void mtx_destroy(mtx_t *m)
{
    pthread_mutex_destroy((pthread_mutex_t *)m);
}

int cnd_init(cnd_t *c)
{
    return answer(pthread_cond_init((pthread_cond_t *)c, NULL));
}

int cnd_wait(cnd_t *c, mtx_t *m)
{
    return answer(pthread_cond_wait((pthread_cond_t *)c, (pthread_mutex_t *)m));
}

int cnd_timedwait(cnd_t *c, mtx_t *m, const struct timespec *until)
{
    return answer(pthread_cond_timedwait((pthread_cond_t *)c, (pthread_mutex_t *)m, until));
}

int cnd_signal(cnd_t *c)
{
    return answer(pthread_cond_signal((pthread_cond_t *)c));
}

int cnd_broadcast(cnd_t *c)
{
    return answer(pthread_cond_broadcast((pthread_cond_t *)c));
}

void cnd_destroy(cnd_t *c)
{
    pthread_cond_destroy((pthread_cond_t *)c);
}
