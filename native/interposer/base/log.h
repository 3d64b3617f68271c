/* Lines on standard error that users know: "[NVSHARE][INFO]: ...". */
#ifndef NVS_LOG_H
#define NVS_LOG_H

/* One write(2) per line, safe from any thread and after fork; never changes errno. DEBUG only with NVSHARE_DEBUG. */
void nvs_log(const char *level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define NVS_DEBUG(...) nvs_log("DEBUG", __VA_ARGS__)
#define NVS_INFO(...) nvs_log("INFO", __VA_ARGS__)
#define NVS_WARN(...) nvs_log("WARN", __VA_ARGS__)

#endif
