#ifndef SIGNALS_H
#define SIGNALS_H

/* Makes the program's signal handlers safe beside Go, as far as they are installed now. */
void gopccl_prepare_signals(void);

#endif
