/* What only the scheduler needs of the workers (the rest is in engine.h). */
#ifndef EPD_ENGINE_WORKERS_H
#define EPD_ENGINE_WORKERS_H

#define EPD_WORKERS_MAX 64u

struct epd_workers;
/* Eventfd that becomes readable when a batch ended on another thread; -1 with one thread. */
int epd_workers_done_fd(const struct epd_workers *workers);

#endif
