/* Doubly linked lists of structures with members `next` and `previous`. */
#ifndef NVS_LIST_H
#define NVS_LIST_H

#include <stddef.h>

/* Put an item at the head. */
#define NVS_LIST_PUSH(head, item)                                                                                      \
	do {                                                                                                           \
		(item)->previous = NULL;                                                                               \
		(item)->next = (head);                                                                                 \
		if ((head) != NULL)                                                                                    \
			(head)->previous = (item);                                                                     \
		(head) = (item);                                                                                       \
	} while (0)

/* Take out an item of the list. Its own members stay as they are. */
#define NVS_LIST_TAKE(head, item)                                                                                      \
	do {                                                                                                           \
		if ((item)->previous != NULL)                                                                          \
			(item)->previous->next = (item)->next;                                                         \
		else                                                                                                   \
			(head) = (item)->next;                                                                         \
		if ((item)->next != NULL)                                                                              \
			(item)->next->previous = (item)->previous;                                                     \
	} while (0)

#endif
