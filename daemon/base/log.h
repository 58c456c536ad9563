/* Logging: one line per record on stderr: "<prio>LEVEL component: text key value key value".
 * The "<N>" sd-journal prefix is written only when stderr is a journal stream (JOURNAL_STREAM) ;
 * otherwise an ISO-8601 UTC time with milliseconds stands in front.
 * Levels: error = somebody must act; warn = degraded; info = life of the daemon; debug = life of
 * objects. Never per op or token. Preserves errno. Thread-safe: one write(2) per line. */
#ifndef EPD_BASE_LOG_H
#define EPD_BASE_LOG_H

enum epd_log_level { EPD_LOG_ERROR, EPD_LOG_WARN, EPD_LOG_INFO, EPD_LOG_DEBUG };

/* Each .c file that logs defines: #define EPD_LOG_COMPONENT "session" before including this. */
#ifndef EPD_LOG_COMPONENT
#define EPD_LOG_COMPONENT "epd"
#endif

/* Process-wide; call before threads start. `ident` is copied and put before the component
 * ("engine0/host"), may be NULL. */
void epd_log_init(enum epd_log_level level, const char *ident);
void epd_log_set_level(enum epd_log_level level);
enum epd_log_level epd_log_get_level(void);
/* 0 on success, -1 when name is not error|warn|info|debug. */
int epd_log_level_parse(const char *name, enum epd_log_level *level_out);

__attribute__((format(printf, 3, 4))) void
epd_log_write(enum epd_log_level level, const char *component, const char *fmt, ...);

#define epd_log_at(level, ...)                                                                     \
    do {                                                                                           \
        if ((level) <= epd_log_get_level())                                                        \
            epd_log_write((level), EPD_LOG_COMPONENT, __VA_ARGS__);                                \
    } while (0)
#define log_error(...) epd_log_at(EPD_LOG_ERROR, __VA_ARGS__)
#define log_warn(...) epd_log_at(EPD_LOG_WARN, __VA_ARGS__)
#define log_info(...) epd_log_at(EPD_LOG_INFO, __VA_ARGS__)
#define log_debug(...) epd_log_at(EPD_LOG_DEBUG, __VA_ARGS__)

/* Rate limit: at most one line per interval and call site; the next line that passes says how
 * many were dropped. Thread-safe. */
struct epd_log_limit {
    unsigned long long next_ns;
    unsigned dropped;
};
int epd_log_limit_pass(struct epd_log_limit *limit, unsigned interval_ms, unsigned *dropped_out);
#define log_limited(level, interval_ms, ...)                                                       \
    do {                                                                                           \
        static struct epd_log_limit limit_;                                                        \
        unsigned dropped_ = 0;                                                                     \
        if ((level) <= epd_log_get_level() &&                                                      \
            epd_log_limit_pass(&limit_, (interval_ms), &dropped_)) {                               \
            epd_log_write((level), EPD_LOG_COMPONENT, __VA_ARGS__);                                \
            if (dropped_)                                                                          \
                epd_log_write((level), EPD_LOG_COMPONENT, "suppressed lines %u", dropped_);        \
        }                                                                                          \
    } while (0)

#endif
