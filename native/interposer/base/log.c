#include "base/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/env.h"

#define LINE_SIZE 1024

void nvs_log(const char *level, const char *format, ...)
{
	if (level[0] == 'D' && !nvs_env()->debug)
		return;
	int saved = errno;
	char line[LINE_SIZE];
	int used = snprintf(line, sizeof(line), "[NVSHARE][%s]: ", level);
	va_list arguments;
	va_start(arguments, format);
	int text = vsnprintf(line + used, sizeof(line) - (size_t)used - 1, format, arguments);
	va_end(arguments);
	if (text > 0)
		used += text;
	if (used > LINE_SIZE - 2)
		used = LINE_SIZE - 2;
	line[used++] = '\n';
	/* A full or closed standard error loses the line: no program, and no neighbour that waits for its memory, waits
	 * because of our log. A pipe that is ready takes a line of this size at once. */
	struct pollfd standard_error = {.fd = STDERR_FILENO, .events = POLLOUT};
	if (poll(&standard_error, 1, 0) == 1 && (standard_error.revents & POLLOUT)) {
		ssize_t written = write(STDERR_FILENO, line, (size_t)used);
		(void)written;
	}
	errno = saved;
}
