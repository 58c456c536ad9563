#include "daemon/ipc/peer.h"

#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "daemon/base/util.h"

enum epd_status epd_peer_of_socket(int fd, struct epd_peer *out, struct epd_error *err)
{
    struct ucred cred;
    socklen_t len = sizeof(cred);
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) != 0)
        return epd_fail_errno(err, "SO_PEERCRED");
    *out = (struct epd_peer){.uid = cred.uid, .gid = cred.gid, .pid = cred.pid};
    return EPD_OK;
}

enum epd_status epd_pidfd_open(pid_t pid, int *fd_out, struct epd_error *err)
{
    int fd = (int)syscall(SYS_pidfd_open, pid, 0u); /* close-on-exec by definition */
    if (fd < 0)
        return epd_fail_errno(err, "pidfd_open of %d", (int)pid);
    *fd_out = fd;
    return EPD_OK;
}

bool epd_peer_in_group(const struct epd_peer *peer, const char *group)
{
    struct group gr, *found = NULL;
    struct passwd pw, *user = NULL;
    char buf[16384], names[4096];
    if (group == NULL || group[0] == 0 || getgrnam_r(group, &gr, buf, sizeof(buf), &found) != 0 ||
        found == NULL)
        return false;
    const gid_t want = found->gr_gid;
    if (peer->gid == want)
        return true;
    if (getpwuid_r(peer->uid, &pw, names, sizeof(names), &user) != 0 || user == NULL)
        return false;
    gid_t groups[256];
    int n = (int)EPD_ARRAY_LEN(groups);
    if (getgrouplist(user->pw_name, user->pw_gid, groups, &n) < 0)
        n = (int)EPD_ARRAY_LEN(groups);
    for (int i = 0; i < n; i++)
        if (groups[i] == want)
            return true;
    return false;
}
