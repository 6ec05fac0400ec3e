/* peer_server.h: what the private servers of the sinks' tests have in common. */
#ifndef TESTS_CONTRACT_PEER_SERVER_H
#define TESTS_CONTRACT_PEER_SERVER_H

/* peer_server_folder creates a folder by a pattern that ends with six X, for a server that runs as
 * nobody if we are root. */
void peer_server_folder(char dir[64], const char *pattern);
/* peer_server_port gives a port below those that the kernel hands out to clients, so that no
 * client is assigned it by chance, even while the server is down. */
int peer_server_port(void);
/* peer_server_certificates makes ca.crt, server.crt and server.key in a folder, for 127.0.0.1 and
 * localhost. */
void peer_server_certificates(const char *dir);
/* peer_server_become_nobody is for the child process that will be the server. */
void peer_server_become_nobody(void);

#endif
